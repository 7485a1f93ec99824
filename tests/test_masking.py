"""What stands in a bundle is read by people who may not have the run's keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from supervisor.base import secrets
from supervisor.base.secret_shapes import WINDOW
from supervisor.base.secrets import mask_command, mask_fact, mask_secrets, mask_value
from supervisor.core import facts as f
from supervisor.evidence.ends import tail_of
from tests import canaries
from tests.canaries import CORE, ESCAPES, LINES, found_in
from tests.evidence.rig import WAITS, running

KEY = "\n".join(
    ["-----BEGIN RSA PRIVATE KEY-----", *["MIIEowIBAAKCAQEA" + "x9" * 24] * 5, "Qw==", "-----END RSA PRIVATE KEY-----"]
)
SECRET = "zG7pQ2vN8kLm4RtY"


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={SECRET}",
        f"export WANDB_API_KEY='{SECRET}'",
        f"'B2_APPLICATION_KEY': '{SECRET}'",
        f'{{"token": "{SECRET}"}}',
        f"launching: rl --hf-token {SECRET} --tokenizer Qwen/Qwen3-0.6B",
        f"argv: ['--api-key', '{SECRET}', '--port', '8000']",
        f"Authorization: Bearer {SECRET}{SECRET}",
        f"GET https://store.example.com/x?X-Amz-Signature={SECRET}&a=1",
        f"cloning https://{SECRET}{SECRET}@github.com/me/private",
        f"redis://:{SECRET}@10.0.0.1:6379/0",
        f"HTTPS_PROXY=http://me@example.com:{SECRET}@proxy:3128",  # a user's name may be an address of mail
        f"smtp://me%40example.com:{SECRET}@mail.example.com",
        f"git clone https://bob:it's{SECRET}@host.example/x.git",
        f"ClientConfig(base_url='x', api_key=SecretStr('{SECRET}'))",
        f"vastai set api-key {SECRET}{SECRET}",
        f"prime config set-api-key {SECRET}{SECRET}",
        f"ghp_{SECRET}{SECRET}",
        f"github_pat_{SECRET}{SECRET}",
        f"hf_{SECRET}{SECRET}",
        f"sk-proj-{SECRET}{SECRET}",
        f"rpa_{SECRET}{SECRET}",
        "AKIA" + SECRET.upper(),
        f"AIza{SECRET}{SECRET}abc",
        f"MYSQL_PWD={SECRET}",
        f"mysql://db?user=me pwd={SECRET}",
        f"X-Api-Key: {SECRET}",
        f"{{'x-api-key': '{SECRET}', 'accept': '*/*'}}",
        f"{{'Authorization': 'token {SECRET}'}}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=AK/2026/s3, Signature={SECRET}",
        f"Set-Cookie: lang=en; sid={SECRET}; HttpOnly",
        f'\\"private_key_id\\": \\"{SECRET}\\"',
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET}==;EndpointSuffix=core",
        f"https://hooks.slack.com/services/T00000000/B00000000/{SECRET}",
        f"https://discord.com/api/webhooks/123456789012345678/{SECRET}",
        f"npm_{SECRET}{SECRET}",
        f"dop_v1_{SECRET}{SECRET}",
        f"rl --wandb-key {SECRET}",
        f"HF_TOKEN='short {SECRET}'",
        f"Passphrase: correct horse {SECRET}",
        f"eyJhbGciOiJIUzI1NiJ9.{SECRET}.{SECRET}",
        f"sshpass -p {SECRET} ssh root@10.0.0.7",
        f"sshpass -p'{SECRET}' rsync -a x y",
        f"['sshpass', '-p', '{SECRET}', 'ssh']",
        f"docker login -u bob -p {SECRET} ghcr.io",
        f"podman login ghcr.io --username bob -p '{SECRET}'",
        f"['docker', 'login', '-p', '{SECRET}']",
        f"mysql -h db -u root -p{SECRET} runs",
        f"mysqldump --single-transaction -uroot -p'{SECRET}' runs",
        f"sshpass -p 'two {SECRET}' ssh host",
        f"tailscale up --authkey=tskey-auth-{SECRET}",
        f"joined with tskey-client-{SECRET}-{SECRET}",
        f"GET /proxy?to=https%3A%2F%2Fbob%3A{SECRET}%40host.example%2Fx",
        f"GET /proxy?to=https%253A%252F%252Fbob%253A{SECRET}%2540host.example%252Fx",
    ],
)
def test_secrets_are_masked_by_name_and_by_shape(text: str) -> None:
    shown = mask_secrets(f"03:12 {text}\nStep 12 | Loss 0.3\n")
    assert SECRET not in shown
    assert SECRET.upper() not in shown
    assert "Step 12 | Loss 0.3" in shown


def test_a_key_of_wandb_is_masked_though_it_looks_like_a_revision() -> None:
    assert "0123456789abcdef" not in mask_secrets("netrc: 0123456789abcdef0123456789abcdef01234567")


def test_a_private_key_is_taken_out_whole_and_no_line_after_it() -> None:
    for prefix in ("", "[trainer0]: 2026-01-06 03:12:00 "):
        text = "\n".join(prefix + line for line in ("before", *KEY.splitlines(), "Step 13 is done, loss 0.2"))
        shown = mask_secrets(text)
        assert "MIIE" not in shown
        assert "x9x9" not in shown
        assert "before" in shown
        assert "Step 13 is done" in shown
    cut = "\n".join([*KEY.splitlines()[3:], "Step 14"])
    assert "x9x9" not in mask_secrets(cut), "its beginning was before the end of the log that is kept"
    escaped = json.dumps({"key": KEY, "step": 15})
    assert "x9x9" not in mask_secrets(escaped)
    assert '"step": 15' in mask_secrets(escaped)


def test_a_log_that_imitates_a_key_blinds_nobody() -> None:
    shown = mask_secrets("-----BEGIN PRIVATE KEY-----\nStep 16 is done, loss 0.2\nStep 17 is done, loss 0.1\n")
    assert "Step 16 is done" in shown
    assert "Step 17 is done" in shown


def test_what_is_no_secret_stays() -> None:
    text = (
        "Step 12 | Time: 3.2s | tokens: 123456789 | throughput 1234 tok/s\n"
        "args: --tokenizer Qwen/Qwen3-0.6B --max-tokens 81920000 --key-frames 12\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
        'File "/opt/prime-rl/src/prime_rl/trainer/rl/train.py", line 311, in train\n'
        'vllm:num_requests_running{model_name="Qwen/Qwen3-0.6B"} 12.0\n'
        'File "/opt/hub/utils/_http.py", line 409, in hf_raise_for_status\n'
        "HF_TOKEN_PATH=/root/.cache/huggingface/token\n"
        "PWD=/root/prime-rl\n"
        "{'token_path': '/root/.cache/huggingface/token', 'max_tokens': 8192}\n"
        '{"token": "checkpoint-3000", "step": 3000}\n'
        "token: global_step_3000\ntoken: checkpoint-3000\nstop_token=checkpoint-3000\n"
        "ssh -p 22022 root@pod; mkdir -p /data/runs; docker run -p 8000:8000 image\n"
        "docker login ghcr.io; mkdir -p /data/runs\n"
        "mysql -P3306 -u root -p runs\nmysql --port 3306 --protocol=tcp\n"
    )
    assert mask_secrets(text) == text


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is remembered in a test is unknown again after it."""
    monkeypatch.setattr(secrets, "_known", secrets.NOTHING)
    secrets._short.cache_clear()
    yield
    secrets._short.cache_clear()


@pytest.mark.usefixtures("forgetful")
def test_a_value_that_only_a_process_knows_is_masked_wherever_it_stands() -> None:
    value = "correct horse battery"
    with running(WAITS, env={"VENDOR_SECRET": value, "HF_TOKEN_PATH": "/root/token"}) as living:
        secrets.remember_processes([living[0].pid])
    assert mask_secrets(f"the service took {value} at once") == "the service took *** at once"
    assert mask_secrets("/root/token") == "/root/token", "a place is no secret"
    assert mask_value({"text": f"say {value}"}) == {"text": "say ***"}


@pytest.mark.usefixtures("forgetful")
def test_a_plain_word_is_no_key_though_a_variable_of_that_name_holds_it() -> None:
    secrets.remember_environment({"WANDB_API_KEY": "disabled", "OPENAI_API_KEY": "not-needed", "A_TOKEN": "hunter2x7"})
    assert mask_secrets("W&B is disabled, a key not-needed") == "W&B is disabled, a key not-needed"
    assert mask_secrets("took hunter2x7") == "took ***"


@pytest.mark.usefixtures("forgetful")
def test_a_password_in_an_address_of_the_environment_is_masked_alone() -> None:
    secrets.remember_environment({"HTTPS_PROXY": f"http://bob:{SECRET}@proxy:3128", "HF_ENDPOINT": "http://h:8000/a@b"})
    assert mask_secrets(f"auth failed with {SECRET}") == "auth failed with ***"
    assert mask_secrets("8000/a@b") == "8000/a@b"


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    "shown",
    ["{}", 'msg="{}"', "call('{}')", "https://host/{}?x=1", "took\t{}"],
)
def test_a_known_value_is_masked_however_it_is_written(shown: str) -> None:
    """As JSON writes it, as an address does, and with a colour in its midst."""
    value = 'pa/ss "wörd" 7%'
    secrets.remember(value)
    written = [value, json.dumps(value)[1:-1], json.dumps(json.dumps(value))[1:-1], value.replace("/", "\\/")]
    written += [value[:4] + "\x1b[1;31m" + value[4:], repr(value)[1:-1]]
    for one in written:
        assert "rd" not in mask_secrets(shown.format(one)).replace("wo", ""), one
    plain = "Zq8 pass/word+41"
    secrets.remember(plain)
    assert "word" not in mask_secrets(shown.format(quote(plain, safe="")))


def test_a_password_that_was_encoded_twice_is_known_by_its_value() -> None:
    known = "pa@ss/wo:rd%7"
    secrets.remember(known)
    twice = quote(quote(known, safe=""), safe="")
    assert "***" in mask_secrets(f"GET /x?to={twice}&step=3"), twice
    assert mask_secrets(f"GET /x?to={twice}&step=3").endswith("&step=3")


def test_command_lines_hide_the_word_after_a_telling_option() -> None:
    shown = mask_command(["rl", "@", "a.toml", "--wandb-api-key", "short1", "--token=abcdefgh1", "--lr", "1e-5"])
    assert shown == "rl @ a.toml --wandb-api-key *** --token=*** --lr 1e-5"


def test_the_end_of_a_log_never_begins_in_the_middle_of_a_secret(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"HF_TOKEN={SECRET}\n" + "x" * 90 + "\n")
    for limit in range(92, 92 + len(SECRET) + 5):
        assert SECRET[-4:].encode() not in tail_of(log, limit)
    log.write_text(f"no newline HF_TOKEN={SECRET} " + "y " * 20)
    for limit in range(42, 42 + len(SECRET)):
        assert SECRET[-4:].encode() not in tail_of(log, limit)


@settings(max_examples=25)
@given(st.integers(0, 400), st.integers(0, 3), st.sampled_from([" ", ",", '"', "x"]))
def test_a_secret_in_a_line_of_any_length_is_found(before: int, lines: int, filler: str) -> None:
    text = ("word " * 3 + filler) * ((WINDOW * lines) // 16) + "a" * before + f" HF_TOKEN={SECRET} --key {SECRET} "
    shown = mask_secrets(text + "b " * before)
    assert f"HF_TOKEN={SECRET}" not in shown
    assert SECRET not in shown.replace(f"--key {SECRET}", "")


def test_headers_that_a_trace_recorded_are_masked_by_their_names() -> None:
    headers = {
        "Authorization": f"token {SECRET}",
        "cookie": f"sid={SECRET}",
        "x-api-key": SECRET,
        "accept": "text/html",
    }
    assert mask_value(headers) == {
        "Authorization": "***",
        "cookie": "***",
        "x-api-key": "***",
        "accept": "text/html",
    }


@pytest.mark.usefixtures("forgetful")
def test_thousands_of_values_in_one_long_line_hold_up_no_other_thread() -> None:
    """The job's own processes choose how many telling names they have, and how long a line of their log is."""
    import random
    import string
    import threading
    import time

    some = random.Random(1)
    values = ["".join(some.choices(string.ascii_letters + string.digits, k=24)) for _ in range(2000)]
    line = "".join(some.choices(string.ascii_letters + string.digits + " ", k=500_000)) + f" {values[7]} end"
    secrets.remember(*values)
    shown, gaps = list[str](), [0.0]
    work = threading.Thread(target=lambda: shown.append(mask_secrets(line)))
    last = time.monotonic()
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        gaps.append(time.monotonic() - last)
        last += gaps[-1]
    assert max(gaps) < 0.5, "how long this thread waited for the other's one call"
    assert values[7] not in shown[0]
    assert shown[0].endswith("*** end")


@pytest.mark.usefixtures("forgetful")
def test_one_process_has_so_many_values_and_no_more() -> None:
    with running(WAITS, env={f"N{number}_SECRET": f"value-number-{number}" for number in range(500)}) as living:
        secrets.remember_processes([living[0].pid])
    assert len(secrets._known.values) == secrets._MOST_OF_ONE


def test_no_line_takes_long() -> None:
    import time

    began = time.process_time()
    for text in ("-" * 300_000, "a" * 300_000, "x y," * 80_000, "eyJaaaaaaaa" * 20_000, "://" * 90_000, "A=" * 99_000):
        mask_secrets(text)
    assert time.process_time() - began < 5


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("name", LINES)
def test_no_form_of_a_canary_gets_through_and_json_stays_json(name: str) -> None:
    secrets.remember(CORE["value"])
    text = f"03:12 ERROR {LINES[name]}"
    shown = mask_secrets(text)
    assert found_in(shown) == set(), shown
    assert mask_secrets(shown) == shown, "safe to do twice"
    assert "03:12 ERROR" in shown
    for value in ({"a": text, "n": 1}, {"a": json.dumps({"b": text}), "n": 1}):
        inside = mask_secrets(json.dumps(value))
        assert json.loads(inside)["n"] == 1
        assert found_in(inside) == set(), inside


def test_a_fact_keeps_no_secret_and_nothing_that_a_terminal_obeys() -> None:
    step = f.LocalStep(4, "incomplete", LINES["address"] + ESCAPES, 7)
    key = "\n".join(canaries.KEY[:2])
    fact = mask_fact(f.LocalSteps((f.LocalStep(2, "complete", "", 7), step), reason=f"\x1b[31mred\x1b[0m\t{key}"))
    assert fact.steps[1].reason == "https://***@host/x "
    assert fact.reason == "red\t***\n***"
    calm = f.StepDone("trainer", 4, 2.5, reward=0.5)
    assert mask_fact(calm) is calm, "what holds neither is the very same object"
    same = f.LocalSteps((f.LocalStep(2, "complete", "", 7),))
    assert mask_fact(same) is same


HEALTHY = """\
[trainer0]: 2026-03-02 10:00:00 SUCCESS Step 12 | Time: 3.2s | tokens: 123456789 | throughput 1234 tok/s
commit 0123456789abcdef0123456789abcdef01234567
HEAD is now at 0123456 mend the key 0123456789abcdef0123456789abcdef01234567 revision
special tokens: eos_token='<|endoftext|>' pad_token: <|endoftext|> bos_token="<|begin_of_text|>"
wandb: Syncing run reverse-text--practice--1a2b3c4d to https://wandb.ai/team/project/runs/1a2b3c4d
Basic configuration of the run is loaded; bearer arrangements
http://127.0.0.1:8000/v1/chat/completions and http://host:8000/a@b
Unexpected token: undefinedreference in JSON
google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found
SecretNotFoundError: requested thing
password authentication failed for user bob
api_key_var = "OPENAI_API_KEY"
Missing key(s) in state_dict: "model.layers.0.self_attn.q_proj.weight"
time per token: 0.0123456789
KeyError: 'model.embed_tokens.weight'
key=value token_ids: [1,2,3] num_key_value_heads=8 attention_key = 'self_attn.q_proj'
ghcr.io/primeintellect/prime-rl:main@sha256:0123456789012345678901234567890123456789012345678901234567890123
ssh root@203.0.113.7:22 scp root@203.0.113.7:/root/x
GPU-5f2c1a3e-1111-2222-3333-444455556666 pid=123456789
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/ProcessGroupNCCL.cpp:1970, Cuda failure 999
/root/outputs/run_default/checkpoints/step_120/trainer/__0_0.distcp
{"step": 12, "time/step": 3.25, "loss/mean": 0.125, "_wandb": {"runtime": 3600}, "max_tokens": 8192}
loading Qwen/Qwen3-30B-A3B-Instruct-2507 at revision 0d7cf23991f47feeb3a57ecb4c9cee8ea4a17bfe
docker run --user 1000:1000 nvcr.io/nvidia/pytorch:25.08-py3
PWD=/root/prime-rl/outputs SSH_AUTH_SOCK=/tmp/ssh-XXXX/agent.1234
"""


@pytest.mark.usefixtures("forgetful")
def test_what_a_healthy_run_says_stays_as_it_is() -> None:
    for line in HEALTHY.splitlines():
        assert mask_secrets(line) == line
    assert mask_secrets(HEALTHY) == HEALTHY


def test_a_line_costs_microseconds() -> None:
    """It runs on each line that becomes a fact, of which a look has thirty; 20 us is usual."""
    lines = HEALTHY.splitlines() * 200
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        secrets._lines("\n".join(lines))
        best = min(best, time.process_time() - began)
    assert best / len(lines) < 200e-6


PARTS = ["token", "password", "api_key", "=", ": ", '"', "'", "\\", " ", "\n", ",", "}", "://bob:", "@host", SECRET]
PARTS += [
    "Authorization",
    "Bearer ",
    "--hf-token ",
    "%22",
    "%5C",
    "\x1b[1m",
    "***",
    "-----BEGIN PRIVATE KEY-----",
    "<|a|>",
]


@settings(max_examples=300)
@example("token='")
@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_json_is_json_and_has_as_many_lines_afterwards(text: str) -> None:
    once = json.dumps({"a": text, "n": [text, 1]})
    assert json.loads(mask_secrets(once))["n"][1] == 1, mask_secrets(once)
    twice = json.dumps([once, 2])
    assert json.loads(mask_secrets(twice))[1] == 2, mask_secrets(twice)
    assert mask_secrets(text).count("\n") == text.count("\n")
    assert len(mask_value([text, text])) == 2  # type: ignore[arg-type]
