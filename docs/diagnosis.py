"""Writes the tables of docs/diagnosis.md from the signatures and the Xid codes, so that they cannot differ.

python docs/diagnosis.py           print them
python docs/diagnosis.py --write   put them into docs/diagnosis.md
"""

from __future__ import annotations

from pathlib import Path

from pages import main

from supervisor import signatures
from supervisor.primerl.logs import SIGNATURES
from supervisor.signatures import Signature
from supervisor.signatures.xids import WHAT_TO_DO, xids

PAGE = Path(__file__).with_name("diagnosis.md")
FILES = (
    ("What prime-rl and verifiers say", Path(signatures.__file__).parents[1] / "primerl" / "signatures.toml"),
    ("What vLLM and SGLang say", signatures.VLLM),
    ("What services and their clients say: W&B, Hugging Face, Ray, providers of models, Docker", signatures.SERVICES),
    *(
        (f"What any trainer can say of {subject}", path)
        for subject, path in zip(
            (
                "its GPUs: CUDA, the driver, compilers",
                "its ranks: NCCL, Gloo, torchrun",
                "its machine: memory, disks, files, the network",
                "what starts it: Docker, Kubernetes, Slurm, providers",
                "its packages",
                "its libraries: DeepSpeed, FSDP, PEFT, transformers, TRL, verl, Megatron",
                "its training: numbers, data, checkpoints",
                "services: Hugging Face, W&B, Ray, models behind an API; and the widest words",
            ),
            signatures.GENERAL,
            strict=True,
        )
    ),
)


def tables() -> str:
    """Markdown: one table a file, and one of the Xid codes."""
    parts = [f"{len(SIGNATURES.signatures)} signatures. **D**: deterministic, no restart cures it."]
    for title, path in FILES:
        parts += [
            "",
            f"### {title}",
            "",
            "| name | | what it means | what helps | source |",
            "| --- | --- | --- | --- | --- |",
        ]
        parts += [_row(one) for one in signatures.read(path).signatures]
    parts += ["", "### Xid codes of NVIDIA's driver", "", "| code | NVIDIA's text | what it means | what to do |"]
    parts += ["| --- | --- | --- | --- |"]
    parts += [f"| {xid.code} | {xid.text} | {xid.note} | {WHAT_TO_DO[xid.action]} |" for xid in xids().values()]
    return "\n".join(parts)


def _row(one: Signature) -> str:
    kind = "D" if one.kind == "deterministic" else ""
    return (
        "| " + " | ".join(_cell(text) for text in (f"`{one.name}`", kind, one.sentence, one.remedy, one.source)) + " |"
    )


def _cell(text: str) -> str:
    """In a table, a bar would end the cell, and a tag would be one."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def parts() -> dict[str, str]:
    """What stands between which marks of the page."""
    return {"signatures": tables()}


if __name__ == "__main__":
    main(PAGE, parts())
