"""What a secret looks like in a text: by the name before it, and by its own shape. Patterns only; nothing is kept here.

``find_secrets`` answers with places, so that its caller decides what stands there instead. It reads a line in its plain
form: without colour codes, percent signs and JSON's backslashes, which would hide a secret from any pattern.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

SECRET_NAME = re.compile(
    # "token" but not TOKENIZERS_PARALLELISM or MAX_TOKENS, which trainers really set.
    r"(?i)(secret|token(?!iz|s$|s_)|passw|passphrase|_pwd$|api[_-]?key|application_?key|credential|_key$|_key_id$|private)"
)
"""Names of variables that hold a secret."""

_PLACE = re.compile(r"(?i)_(path|file|dir|sock|url|var)$")  # HF_TOKEN_PATH names a place, not a secret
_HEADER = re.compile(r"(?i)^(?:(?:proxy-)?authorization|(?:set-)?cookie)$")

Span = tuple[int, int]
WINDOW, OVERLAP = 16 << 10, 4 << 10  # characters; no name stands further from its secret

# A value without quotes. Not <|endoftext|>, which is what a tokenizer's eos_token is; nor what is masked already.
_VALUE = r"""(?!\*\*\*|<)(?P<value>[^\s"',;}\]]"""
_ENDS = r"(?:[_-][\w-]{0,20}|[0-9]{0,3})(?<![_-]path)(?<![_-]file)(?<![_-]dir)(?<![_-]sock)(?<![_-]url)(?<![_-]var)"
# Also as a class shows it: SecretStr('...').
_QUOTED = (
    r"""(?:[A-Za-z_][\w.]{0,39}\()?[bBrRuU]{0,2}(?P<quote>["'])(?!\*\*\*|<)"""
    r"""(?P<quoted>(?:(?!(?P=quote)|"[,}\]])[^\r\n]){%d,2048})(?P=quote)"""  # never over the end of JSON's own text
)
_KEYS = (
    r"passw(?:or)?d|passphrase|(?:api|access|application|encryption|private|secret)[_-]?key(?:[_-]?id)?|account_?key"
    r"|(?:wandb|auth)[_-]?key|client_?secret"
)
# Of a command, also as a list: what parts its words, a character of one, and a word that is a secret.
_GAP, _WORD = r"""(?:["']?,?\s{1,2})""", r"""[^\s"',|;&]"""
_BETWEEN = rf"""{_GAP}["']?"""
_ARGUMENT = r"""(?:["'](?!\*\*\*)(?P<quoted>[^"'\r\n]{3,256})["']|(?!\*\*\*)(?P<value>[^\s"']{3,256}))"""
_NO_NUMBER = r"(?![0-9.,e+-]+(?:\s|$))"
_IS = r"""["']?\]?\s{0,3}+[=:]\s{0,3}+"""
# "token": "checkpoint-3000": words and a number name a thing; no program makes such a key.
_NO_NAME = r"""(?!["']?[a-z]{2,14}(?:[-_][a-z]{2,14})?[-_][0-9]{1,7}(?:[\s"',;}\]]|$))"""


def _either(before: str, least: int) -> str:
    return rf"""{before}(?:{_QUOTED % least}|["']?{_VALUE}{{{least},}}))"""


_SHAPES: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    (tuple(words.split()), pattern)
    for words, pattern in (
        # Each with words, in lower case, of which one must be there: most lines have none, and words are found
        # much faster than patterns.
        # NAME=value and "name": "value" with a telling name, as in environments, JSON, TOML and a traceback's locals.
        # Not prime-rl's api_key_var = "OPENAI_API_KEY": that names a variable.
        ("pass key", _either(rf"(?i)(?:{_KEYS}){_ENDS}{_IS}", 6)),
        ("secret credential _pwd", _either(rf"(?i)(?:secret|credentials?|_pwd){_ENDS}{_IS}", 8)),
        # "Unexpected token: something" is prose, and "per token: 0.0123456789" a number.
        ("token", _either(rf"(?i)token(?!iz|s){_ENDS}{_IS}{_NO_NAME}(?=[\"'bBrRuU]{{0,3}}\S*[0-9]){_NO_NUMBER}", 8)),
        ("token", rf"(?i)token(?!iz|s){_ENDS}{_IS}{_NO_NAME}{_QUOTED % 8}"),
        ("token", rf"(?i)token(?!iz|s){_ENDS}[\"']?\]?={_NO_NUMBER}{_NO_NAME}{_VALUE}{{8,}})"),
        ("passphrase", rf"""(?i)passphrase{_IS}(?!["']|\*\*\*)(?P<value>[^\r\n"']{{8,}})"""),  # many words
        # NAMES of variables, which are telling by their ends.
        ("_pass key auth", _either(r"(?:_PASS|_KEY|_KEY_ID|APIKEY|_AUTH)" + _IS, 8)),
        ("key auth", rf"(?<![A-Za-z0-9_])(?:KEY|AUTH)={_VALUE}{{8,}})"),
        # pwd=..., but not the shell's PWD=/root.
        ("pwd", rf"""(?i)(?<![a-z])pwd{_IS}["']?(?!/){_VALUE}{{6,}})"""),
        # --hf-token VALUE, --wandb.api-key=VALUE; neither --tokenizer Qwen/Qwen3 nor --max-tokens 8192.
        (
            "key token secret pass credential",
            (
                r"(?i)(?<![\w-])--?[\w.-]{0,40}(?:secret|token(?!iz|s\b)|key|passw(?:or)?d|passphrase|credential)"
                rf"""(?:[_-][\w-]{{0,20}})?(?<![_-]path)(?<![_-]file)(?<![_-]var)["']?,?[ =]\s{{0,2}}["']?"""
                rf"""(?!-){_VALUE}{{8,}})"""
            ),
        ),
        # ('x-api-key', '...') in a list of headers.
        (
            "key' key\" token' token\" secret authorization cookie",
            (
                r"""(?i)\(b?["'][\w-]{0,40}(?:key|token|secret|authorization|cookie)["'],\s?b?["'](?!\*\*\*)"""
                r"""(?P<value>[^"'\r\n]{6,2048})["']\)"""
            ),
        ),
        # Authorization, Cookie and their like: in quotes as a dict shows them, else to the line's end.
        (
            "authorization cookie",
            (
                rf"""(?i)\b(?:(?:proxy-)?authorization|(?:set-)?cookie){_IS}(?:{_QUOTED % 6}|"""
                r"""(?!["']|\*\*\*)(?:(?:Basic|Bearer|Token)\s)?+(?!\*\*\*)(?P<value>[^\r\n"']{6,}))"""
            ),
        ),
        ("basic bearer", r"\b(?i:basic|bearer)(?:\s|\+)+(?=[a-z+/._~-]*[A-Z0-9=])(?P<value>[A-Za-z0-9+/=._~-]{12,})"),
        # https://bob:PASSWORD@host, also with an @ or a / in the password; not http://host:8000/a@b.
        (
            "://",
            r"""://(?P<value>[^/\s:@"']{0,256}:(?![0-9]{1,5}(?:[/?#\s'"]|$))(?!\*\*\*)(?:[^\s"']|'(?=\w)){1,256})(?=@)""",
        ),
        # https://bob@example.com:PASSWORD@host
        (
            "://",
            r"""://(?P<value>[^/\s:@"']{1,256}@[^/\s:@"']{1,256}:(?![0-9]{1,5}[/?#\s'"])(?!\*\*\*)[^/\s@"']{1,256})(?=@)""",
        ),
        ("://", r"""://(?P<value>[^/\s:@"']{16,256})(?=@)"""),  # https://TOKEN@github.com
        ("@", r"""(?<![\w/@:.%-])[\w.-]{1,64}:(?!\*\*\*)(?P<value>[^\s:@/"'|]{6,128})(?=@[\w-]{1,63}\.[A-Za-z0-9])"""),
        (
            "? &",
            (
                r"(?i)[?&][\w.-]{0,40}(?:token(?!s)|key|sig|signature|secret|passw(?:or)?d|credential|auth)"
                r"""(?:[_.-][\w.-]{0,10})?=(?!\*\*\*)(?P<value>[^&\s"'#]{6,})"""
            ),
        ),
        # .netrc, in one line or in three; curl -u bob:PASSWORD; wandb login KEY.
        (
            "password",
            (
                r"(?i)(?:\blogin\s+\S{1,256}\s+password\s+(?!\*\*\*)(?P<value>[^\s\"\']{6,})"
                r"|^\s*password\s+(?!\*\*\*)(?P<quoted>[^\s=:\"\'][^\s\"\']{5,})\s*$)"
            ),
        ),
        ("password", r"(?i)\bpassword\s+(?=\S*[0-9])(?!\*\*\*)(?P<value>[^\s=:\"\'][^\s\"\']{7,})\s*[\"\']?\s*$"),
        (
            "curl --user",
            r"""(?<![\w-])(?:-u|--user)[ =]?["']?[^\s:"']{1,128}:(?![0-9]+\b|\*\*\*)(?P<value>[^\s"']{4,})""",
        ),
        # sshpass -p X; docker login -u bob -p X; mysql -pX ("-p X" asks, and X is the database); as text and as a list.
        ("sshpass", rf"\bsshpass{_BETWEEN}-p{_GAP}?{_ARGUMENT}"),
        (
            "login",
            (
                r"""\b(?:docker|podman|nerdctl|buildah|skopeo|oras|crane|registry)["']?,?\s["']?login"""
                rf"(?:{_BETWEEN}(?!-p){_WORD}+){{0,8}}?{_BETWEEN}-p(?:{_GAP}|=)?{_ARGUMENT}"
            ),
        ),
        (
            "mysql mariadb",
            rf"\b(?:mysql|mariadb)[\w-]{{0,20}}(?:{_BETWEEN}(?!-p[^-]){_WORD}+){{0,12}}?{_BETWEEN}-p{_ARGUMENT}",
        ),
        # vastai set api-key KEY; prime config set-api-key KEY
        ("api", r"""(?i)\bapi[_-]?key\s+["']?(?=[\w-]{0,60}[0-9])(?P<value>[\w-]{20,255})(?![\w.-])"""),
        # W&B's older keys look like git revisions: the words before them tell which it is.
        (
            "wandb netrc login key",
            (
                r"(?i)(?:wandb|netrc|login|key)\b(?![^\r\n]{0,200}\b(?:commit|revision|sha))[^\r\n]{0,200}?(?<![0-9a-z])"
                r"(?P<value>[0-9a-f]{40})(?![0-9a-z])"
            ),
        ),
        # B2: application keys are 31 characters that start with K and the cluster, their ids 25 digits and letters,
        # the master key's id 12 (Backblaze's page on application keys).
        ("k0", r"\b(?P<value>K0[0-9]{2}[A-Za-z0-9+/]{27})(?![A-Za-z0-9+/])"),
        ("0", r"\b(?P<value>0[0-9]{2}[0-9a-f]{12}0[0-9]{9})\b"),
        ("akia asia", r"\b(?P<value>(?:AKIA|ASIA)[A-Z0-9]{16})\b"),  # Amazon's access key ids
        # No underscore after hf_: hf_raise_for_status is a function.
        (
            "hf_ api_org_ rpa_ gsk_ r8_ pit_ npm_ _v1_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ wandb_v",
            (
                r"\b(?P<value>(?:(?:hf|api_org|rpa|gsk|r8|pit|npm|do[opr]_v1)_[A-Za-z0-9]{16,255}"
                r"|gh[pousr]_[A-Za-z0-9]{16,255}|(?:wandb_v[0-9]|github_pat)_[A-Za-z0-9_-]{16,255}))"
            ),
        ),
        (
            "nvapi- xox glpat- tskey- sk- pk- rk-",
            r"\b(?P<value>(?:nvapi|xox[abposr]|glpat|tskey|sk|pk|rk)-[A-Za-z0-9_-]{16,255})",
        ),
        ("aiza", r"\b(?P<value>AIza[A-Za-z0-9_-]{35})"),
        # JSON Web Tokens.
        ("eyj", r"\b(?P<value>eyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,4096}(?:\.[A-Za-z0-9_-]{0,4096})?)"),
        # Webhooks and pings: who has the address may write there.
        (
            "slack discord hc-ping",
            (
                r"(?i)\b(?:hooks\.slack(?:-gov)?\.com|discord(?:app)?\.com/api/(?:v[0-9]{1,3}/)?webhooks|hc-ping\.com)/"
                r"(?P<value>[\w./+-]{8,255})"
            ),
        ),
        # What loguru's traceback shows below a line of source: the name stands in another line.
        ("└", r"""└ b?["'](?P<value>(?=[^"']*[0-9])(?=[^"']*[A-Za-z])[A-Za-z0-9+/=_]{20,})["']"""),
    )
)

_BY_WORD = {word: tuple(shape for words, shape in _SHAPES if word in words) for words, _ in _SHAPES for word in words}
_compile = functools.cache(re.compile)  # at first need: all of them were a sixth of what a command takes to start

_HIDING = re.compile(
    r"(?:\x1b|\\{1,15}(?:u001[bB]|x1[bB]))\[[0-9;:]{0,32}m"
    r"|%(?:25){0,3}[0-9A-Fa-f]{2}"  # also of an address within an address, which is encoded twice
    r"""|\\{1,15}(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrt"'/])"""
)
_LETTER = {"n": "\n", "r": "\r", "t": "\t"}


def is_telling(name: str) -> bool:
    """Is what is called so a secret?"""
    return bool(SECRET_NAME.search(name) or _HEADER.search(name)) and _PLACE.search(name) is None


def plain_form(text: str) -> tuple[str, list[int] | None]:
    """``text`` without what hides a secret in it, and for each character of that (and its end) its place in ``text``.

    None for the places where both are the same.
    """
    if "%" not in text and "\\" not in text and "\x1b" not in text:
        return text, None
    pieces: list[str] = []
    places: list[int] = []
    at = 0
    for hiding in _HIDING.finditer(text):
        start, end = hiding.span()
        pieces.append(text[at:start])
        places.extend(range(at, start))
        at = end
        if letter := _hidden_character(hiding[0]):
            pieces.append(letter)
            places.append(start)
    if not at:
        return text, None
    pieces.append(text[at:])
    places.extend(range(at, len(text) + 1))
    return "".join(pieces), places


def _hidden_character(hiding: str) -> str:
    """The character that an escape stands for; "" for a colour."""
    if hiding[-1] == "m":
        return ""
    if hiding[0] == "%":
        return chr(int(hiding[-2:], 16))
    escaped = hiding.lstrip("\\")
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _LETTER.get(escaped, escaped)


def find_secrets(line: str) -> Iterator[Span]:
    """Where secrets stand in the plain form of a line; places may overlap.

    Of a very long line in windows, so that no single call holds up the other threads.
    """
    lower = line.lower()
    shapes = {_compile(shape): None for word, shapes in _BY_WORD.items() if word in lower for shape in shapes}
    for start in range(0, max(1, len(line) - OVERLAP), WINDOW - OVERLAP) if shapes else ():
        for shape in shapes:
            for match in shape.finditer(line, start, start + WINDOW):
                # What goes on behind the window is looked at as a whole.
                whole = shape.match(line, match.start()) if match.end() == start + WINDOW else None
                yield from _secret(whole or match)


def _secret(match: re.Match[str]) -> Iterator[Span]:
    for name in match.re.groupindex:
        if name != "quote" and match.start(name) >= 0:
            yield match.span(name)
