#!/usr/bin/env bash
# Steps of the Dockerfile: prime-rl at one commit in /opt/prime-rl, with the environment that its lock names.
#
#   prime-rl.sh checkout    GITHUB (a URL that ends in /), PRIME_RL_REPOSITORY (OWNER/NAME), PRIME_RL_REVISION
#   prime-rl.sh sync        PRIME_RL_SYNC: further words for `uv sync`
#
# PRIME_RL_DIR is another folder. The checkout keeps its .git: verifiers takes its version from there, and so does the
# supervisor the trainer's revision.
set -euo pipefail
folder=${PRIME_RL_DIR:-/opt/prime-rl}

fail() {
  echo "prime-rl.sh: $*" >&2
  exit 1
}

checkout() {
  local url=$GITHUB$PRIME_RL_REPOSITORY.git revision=$PRIME_RL_REVISION
  [[ $revision =~ ^[0-9a-f]{40}$ ]] ||
    fail "PRIME_RL_REVISION is '$revision': give a whole commit, 40 hexadecimal digits; a branch or a tag may be another one tomorrow"
  # Its submodules are named by ssh, which wants a key that no build should have. Only the environment reaches the git
  # processes that clone them.
  export GIT_TERMINAL_PROMPT=0 GIT_CONFIG_COUNT=2
  export GIT_CONFIG_KEY_0=url.$GITHUB.insteadOf GIT_CONFIG_VALUE_0=git@github.com:
  export GIT_CONFIG_KEY_1=url.$GITHUB.insteadOf GIT_CONFIG_VALUE_1=https://github.com/
  git init --quiet "$folder"
  cd "$folder"
  git remote add origin "$url"
  git fetch --quiet --depth 1 origin "$revision" ||
    fail "$url gave no commit $revision: is it that repository's, was it pushed, and does this machine reach $GITHUB?"
  git -c advice.detachedHead=false checkout --quiet --detach FETCH_HEAD
  [[ $(git rev-parse HEAD) == "$revision" ]] || fail "$url gave $(git rev-parse HEAD) instead of $revision"
  [[ -f uv.lock ]] || fail "$revision of $url has no uv.lock: its environment would be another one each day"
  # Whole histories without their files: versions are counted from tags.
  git submodule --quiet update --init --recursive --filter=blob:none ||
    fail "a submodule of $revision could not be fetched, see above"
}

sync() {
  local -a words
  read -ra words <<<"${PRIME_RL_SYNC:-}"
  cd "$folder"
  # copy: the cache is a mount, to which nothing can be linked.
  UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_PREFERENCE=only-system \
    uv sync --locked --no-dev --no-progress "${words[@]}" ||
    fail "uv could not make the environment of $(git rev-parse HEAD), see above; PRIME_RL_SYNC is '${PRIME_RL_SYNC:-}'"
  rm -f /tmp/uv-*.lock # uv's own, which it leaves
  [[ -x .venv/bin/rl ]] || fail "the environment of $(git rev-parse HEAD) has no launcher .venv/bin/rl: is it prime-rl?"
}

case ${1:-} in
checkout) checkout ;;
sync) sync ;;
*)
  echo "prime-rl.sh: checkout or sync" >&2
  exit 2
  ;;
esac
