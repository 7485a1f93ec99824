"""What can be known of a run before a GPU is touched: findings with an id, a place, a reason and a remedy.

``subject.gather`` looks (files, and the machine unless told otherwise), the checks are pure functions of what it
found, ``examine`` runs them all. Nothing here starts, stops or changes anything; ``fixes`` makes text, not files.
"""

from __future__ import annotations

from supervisor.preflight.examine import examine
from supervisor.preflight.finding import Edit, Finding, Rule, Severity, Where, rules

__all__ = ["Edit", "Finding", "Rule", "Severity", "Where", "examine", "rules"]
