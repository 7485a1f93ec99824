"""Is a step whole, and how it travels: completeness, manifest, publish, restore. Knows nothing of any trainer."""
