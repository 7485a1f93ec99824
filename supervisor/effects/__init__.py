"""Effects only do: each carries out one kind of action, is idempotent, and reports back as a fact."""
