"""At which address each port is bound: a stranger at another one is not in a start's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.primerl.eras import ERAS
from tests.primerl.helpers import CONFIG, job_of, request


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        ("", {}),  # vLLM listens on all
        ('[inference.server]\nhost = "10.0.0.5"\n', {8000: "10.0.0.5"}),
    ],
)
def test_the_engines_address_is_the_one_that_its_configuration_names(
    tmp_path: Path, said: str, hosts: dict[int, str]
) -> None:
    component = job_of(tmp_path, "be0e3d131", config=CONFIG + said).components(request(None))[0]
    assert component.hosts == hosts


@pytest.mark.parametrize(("said", "host"), [("", "localhost"), ('host = "10.0.0.5"\n', "10.0.0.5")])
def test_the_store_of_the_weights_group_listens_where_it_is_told_and_at_localhost_by_default(
    tmp_path: Path, said: str, host: str
) -> None:
    commit = next(name for name, era in ERAS.items() if era.dialect.nccl_resume)
    config = CONFIG + f'[weight_broadcast]\ntype = "nccl"\n{said}'
    component = job_of(tmp_path, commit, config=config).components(request(None))[0]
    assert component.hosts == {29501: host}
