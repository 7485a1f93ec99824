"""The practice job: a program that stands in for prime-rl at its outside and trains in fast motion, and can be told
to fail."""
