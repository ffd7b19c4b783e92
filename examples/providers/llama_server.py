#!/usr/bin/env python3
"""A prefill provider that lets a running llama-server do the work. Standard library only.

    llama-server -m model.gguf --port 8080 -np 1 -fa on --slot-save-path /shared/slots
    export LLAMA_SERVER_URL=http://127.0.0.1:8080 LLAMA_SERVER_SLOTS=/shared/slots
    onebit provider check examples/providers/llama_server.py -m model.gguf

The server may be on another machine, with a GPU: LLAMA_SERVER_SLOTS is its --slot-save-path as this machine sees it. It
must run the same GGUF with the cache types of `onebit serve` (f16), and one slot (-np 1), so that the cells of the cache
are in the order of the positions.
"""

import argparse
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("LLAMA_SERVER_URL", "http://127.0.0.1:8080").rstrip("/")
SLOTS = os.environ.get("LLAMA_SERVER_SLOTS", "")


def call(path, body=None):
    """The server's answer to a POST of `body`, or to a GET without one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{URL}{path}: {error.code}: {error.read(500).decode(errors='replace')}") from error
    except OSError as error:
        raise RuntimeError(f"{URL}{path}: {error}") from error


def check_model(path):
    """The state of another model would only be found out by its numbers, if at all."""
    if not os.path.isfile(path):
        raise RuntimeError(f"--model {path}: no such file")
    served = call("/props").get("model_path", "")
    if os.path.basename(served) != os.path.basename(path):
        raise RuntimeError(f"the server at {URL} has {served} loaded, not {path}")


def prefill(ids):
    """Evaluates the prompt; returns the id that the logits rank first after it.

    One token is asked for, because without one the server never looks at the logits. It is chosen but not evaluated, so the
    slot then holds the prompt and nothing else. (`n_probs` would not do: no probabilities come back for a token that is
    only part of a character.)
    """
    answer = call("/completion", {
        "prompt": ids, "n_predict": 1, "temperature": 0, "samplers": ["temperature"], "return_tokens": True,
        "id_slot": 0, "cache_prompt": True,
    })
    return answer["tokens"][0]


def fetch_state(out):
    """Has the server save its slot, and moves the file to `out`, which is complete or not there at all."""
    name = f"onebit-{os.getpid()}-{time.time_ns()}.state"
    saved, partial = os.path.join(SLOTS, name), out + ".partial"
    try:
        n_saved = call("/slots/0?action=save", {"filename": name})["n_saved"]
        shutil.copyfile(saved, partial)
        os.replace(partial, out)
    finally:
        for path in (saved, partial):
            if os.path.exists(path):
                os.remove(path)
    return n_saved


def main():
    parser = argparse.ArgumentParser(description="prefill provider on a running llama-server")
    for flag in ("--tokens", "--out", "--model"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--elfs", help="not needed here")
    args = parser.parse_args()
    with open(args.tokens, encoding="ascii") as file:
        ids = [int(line) for line in file if line.strip()]
    if not ids:
        raise RuntimeError(f"--tokens {args.tokens}: no ids")
    if not os.path.isdir(SLOTS):
        raise RuntimeError(f"LLAMA_SERVER_SLOTS={SLOTS}: no such directory")
    if not os.path.isdir(os.path.dirname(os.path.abspath(args.out))):
        raise RuntimeError(f"--out {args.out}: no such directory")
    check_model(args.model)

    started = time.monotonic()
    argmax = prefill(ids)
    prefill_ms = (time.monotonic() - started) * 1e3
    n_saved = fetch_state(args.out)
    if n_saved != len(ids):
        os.remove(args.out)
        raise RuntimeError(f"the server saved {n_saved} tokens, the prompt has {len(ids)}")
    print(json.dumps({"n_tokens": len(ids), "argmax": argmax, "prefill_ms": round(prefill_ms, 3)}))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError, IndexError, RuntimeError) as error:
        sys.exit(f"llama_server.py: {error}")
