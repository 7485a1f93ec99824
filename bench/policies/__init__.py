"""What people use instead, an oracle, and variants of the core, in the virtual pod of ``supervisor.simulator``."""
