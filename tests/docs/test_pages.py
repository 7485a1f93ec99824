"""What scripts write into the pages of docs/ is what stands there."""

from __future__ import annotations

from types import ModuleType

import pytest

from docs import diagnosis, facts, pages, policy, preflight, settings


@pytest.mark.parametrize("script", [diagnosis, facts, policy, preflight, settings], ids=lambda script: script.__name__)
def test_a_page_shows_what_the_code_says(script: ModuleType) -> None:
    page, parts = script.PAGE.read_text(), script.parts()
    assert pages.written(page, parts) == page, f"run: python docs/{script.__name__.partition('.')[2]}.py --write"
    for name, text in parts.items():
        assert text.count("\n") > 5
        with pytest.raises(ValueError, match=f"lacks <!-- {name}: "):
            pages.written(page.replace(f"<!-- end of {name} -->", ""), parts)
        assert pages.written(page.replace(text, "old"), parts) == page
