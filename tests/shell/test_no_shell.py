"""Nothing from outside is run through a shell: every place in the program that could is found, and has its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STARTERS = {
    *("subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output"),
    *("os.execve", "os.execv", "os.execvp", "os.execvpe", "os.posix_spawn", "os.posix_spawnp", "OwnChild"),
}
SHELLS = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"),
    *("asyncio.create_subprocess_shell", "commands.getoutput"),
}
READS_CODE = {"eval", "exec", "compile", "pickle.load", "pickle.loads", "marshal.load", "marshal.loads", "yaml.load"}
MAY = re.compile(
    r"subprocess|execv|posix_spawn|OwnChild|\bsystem\b|popen|pty|getoutput|getstatusoutput|shell|[\"']-c[\"']|sh -c"
    r"|(?<![.\w])(?:eval|exec|compile)\(|pickle|marshal|yaml"
)
"""What is in the text of every module in which something is to be found: parsing all of the program takes seconds."""
SHELL_NAMES = re.compile(r"(^|/)(sh|bash|dash|zsh|ksh)$")

ALLOWED = {
    "effects/pod_setup.py": "[setup] commands and [hooks], which are shell commands of the run file's owner",
    "fleet/places/runpod.py": "the command of a pod at RunPod: base64 of our own start script, run there and not here",
}
STARTED_IN = {
    "effects/pod_setup.py",
    "evidence/collecting.py",  # py-spy and its like, by words
    "process/launch.py",  # the shim, by words
    "base/own_child.py",  # for those below that ask a child one thing, by words
    "cli/ctl.py",  # becomes rl-supervisor for the live screen
    "cli/state_folder.py",  # our own rl-supervisor, for what a run without a daemon left
    "fleet/places/ssh.py",  # ssh, with the person's own configuration; its script goes over standard input
    "daemon/api_backend.py",  # our own rl-supervisor, for the incidents in the journal
    "daemon/start_check.py",  # our own look before a start
    "slurm/submit.py",  # sbatch and squeue, by words
    "sensors/slurm.py",  # squeue and its like, by words
    "daemon/side_child.py",  # our own rl-supervisor, for the page, and our child that speaks to a collector
    "cli/web.py",  # chromium, for a picture of the page, by words
    "cli/wandb_page.py",  # our own child that asks W&B; what it asks goes over standard input
    "cli/wandb_sync.py",  # `wandb sync` with the folders of the run, by words
    "effects/notify_targets.py",  # our own child that asks apprise; the message goes over standard input
    "effects/incident_evidence.py",  # our own child that collects evidence
    "nodes/agent.py",  # the same on another machine; what is asked goes over standard input
    "effects/log_upkeep.py",  # our own round over the logs
    "effects/store_work.py",  # our own look at the host, before the claim
    "effects/root_cause.py",  # our own diagnose, beside the daemon
    "effects/transfers.py",
    "process/transient.py",  # systemd-run, systemctl
    "install/installing.py",  # systemctl
    "process/nanny.py",  # the daemon
    "primerl/probe.py",  # the job's interpreter with fixed code
    "process/ask_program.py",  # the job's interpreter with fixed code, its launcher's dry run, our own looks
    "sensors/gpu_survey.py",  # our interpreter with fixed code, to ask NVML beside us
    "sensors/leaving.py",  # [leaving] command, by words
    "process/shim.py",  # the job
    "daemon/upgrade.py",
}


def modules() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        if MAY.search(text := path.read_text()):
            yield path.relative_to(ROOT / "supervisor").as_posix(), ast.parse(text)


def called(node: ast.Call) -> str:
    """The function's name with its dots, "" for what has none: unparsing each of them takes seconds."""
    names, where = [], node.func
    while isinstance(where, ast.Attribute):
        names.append(where.attr)
        where = where.value
    return ".".join(reversed([*names, where.id])) if isinstance(where, ast.Name) else ""


def shells(nodes: Iterable[ast.AST]) -> list[str]:
    """Whatever of a module may hand a text to a shell."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Call):
            if called(node) in SHELLS:
                found.append(ast.unparse(node))
            found += [
                ast.unparse(node)
                for keyword in node.keywords
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
            ]
        elif isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            # [SOMETHING, "-c", ...]: allowed for an interpreter of Python, whose code stands in our own source.
            first, second = node.elts[0], node.elts[1]
            if isinstance(second, ast.Constant) and second.value == "-c":
                named = isinstance(first, ast.Constant) and SHELL_NAMES.search(str(first.value))
                if named or ("python" not in (text := ast.unparse(first)) and text != "sys.executable"):
                    found.append(ast.unparse(node))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("sh -c", "bash -c"))
        ):
            found.append(node.value)
    return found


def test_shells_and_processes_are_started_in_known_places_and_no_code_is_read_from_data() -> None:
    """A new place that starts one is looked at."""
    in_shell: dict[str, list[str]] = {}
    starts: set[str] = set()
    code: list[tuple[str, str]] = []
    for name, tree in modules():
        nodes = list(ast.walk(tree))
        if places := shells(nodes):
            in_shell[name] = places
        calls = [(node, called(node)) for node in nodes if isinstance(node, ast.Call)]
        starts |= {name for _, function in calls if function in STARTERS}
        code += [(name, ast.unparse(node)) for node, function in calls if function in READS_CODE]
    assert set(in_shell) == set(ALLOWED), in_shell
    assert all(len(places) == 1 for places in in_shell.values()), in_shell
    assert starts == STARTED_IN
    assert code == []


def test_the_search_finds_what_it_looks_for() -> None:
    for bad in (
        "import os\nos.system(x)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=maybe)",
        'subprocess.run(["sh", "-c", x])',
        'words = [shell, "-c", x]',
        'os.popen("ls")',
        'command = "sh -c ls"',
    ):
        assert shells(ast.walk(ast.parse(bad))), bad
        assert MAY.search(bad), bad
    sound = ast.parse('subprocess.run([sys.executable, "-c", x])\nsubprocess.run(x, shell=False)')
    assert not shells(ast.walk(sound))
    for name in STARTERS | SHELLS | READS_CODE:
        assert MAY.search(f"done = {name}(x)"), name


def test_scripts_for_the_pod_execute_no_text_that_they_read() -> None:
    for script in (ROOT / "units").glob("*.sh"):
        code = "\n".join(
            line.partition(" #")[0] for line in script.read_text().splitlines() if not line.startswith("#")
        )
        assert not re.search(r"(^|[\s;|&(])(eval|source|\.)\s|`", code, re.MULTILINE), script
        # What process 1 is given in the provider's place is that image's own command line.
        assert "bash -c" not in code, script
        assert "sh -c" not in code, script
