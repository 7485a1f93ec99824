"""Pods that behave at random beside the real core, a module for each kind of run (``tests.core.test_model``)."""
