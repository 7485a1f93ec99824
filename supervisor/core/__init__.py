"""The pure part: facts in, verdicts with a sentence and actions out. Imports nothing but itself."""
