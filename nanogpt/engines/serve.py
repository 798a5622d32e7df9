"""Our models behind an address, in the form of OpenAI's completions. `nanogpt serve`

A server to try the audit on, right or with a bug of the gallery: small, for one machine, one text
at a time. It has what an audit asks: seeds, n texts a request, token ids, log-probabilities, and
`echo`, which reads a prompt and draws nothing. And it keeps what chapter 31 promises: `stop`,
`presence_penalty`, `frequency_penalty`, `logit_bias` (OpenAI's), `repetition_penalty`, `min_p`
and `structured_outputs` with a `regex` (vLLM's). Chapter 24's server is the one for many texts.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor

from nanogpt.data import CharTokenizer
from nanogpt.drafts import transformer
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.engines.adapters import plain_generate, target_of
from nanogpt.generate import Generation
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.gallery import mutant
from nanogpt.sampling import RandomSource, Sampling
from nanogpt.serving.constraints import Constraints, complete
from nanogpt.serving.grammar import Grammar
from nanogpt.speculative import speculative_generate

MODEL = "nanogpt"
DRAFTS = ("none", "transformer", "lookup")


@dataclass
class Completions:
    """Answers to requests for completions, by a decoder with speculative_generate's arguments."""

    decode: Callable[..., Generation]
    target: GPTLanguageModel
    draft: Any
    tokenizer: CharTokenizer
    K: int = 4
    lock: threading.Lock = field(default_factory=threading.Lock)  # drafts keep books of one text

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The response to a request's fields. Raises ValueError or TypeError if they are wrong."""
        prompt = body.get("prompt")
        one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        choices = []
        with self.lock:
            for given in [prompt] if one else prompt or []:
                tokens = self.tokenizer.encode(given) if isinstance(given, str) else list(given)
                make = self.read if body.get("echo") else self.draw
                choices += make(tokens, body)
        numbered = [choice | {"index": i} for i, choice in enumerate(choices)]
        return {"object": "text_completion", "model": MODEL, "choices": numbered}

    def draw(self, prompt: list[int], body: dict[str, Any]) -> list[dict[str, Any]]:
        """n choices of max_tokens new tokens each, the ith by the seed + i.

        Raises ValueError if log-probabilities are asked for with a temperature or a cut.
        """
        n, top_k, rules = body.get("max_tokens", 16), body.get("top_k") or None, self.rules(body)
        sampling = Sampling(body.get("temperature", 1.0), top_k, body.get("top_p"))
        if body.get("logprobs") and sampling != Sampling():
            raise ValueError("log-probabilities come at temperature 1 only; read again with echo")
        made = []
        for i in range(body.get("n", 1)):
            rng = RandomSource(body.get("seed", 0) + i)
            if rules.free:
                text = self.decode(self.target, self.draft, prompt, n, self.K, sampling, rng)
                p = torch.cat([r.target_probs[: len(r.emitted)] for r in text.rounds])
                made.append(self.choice(prompt, text.tokens, p[: len(text.tokens)].log(), body))
                continue
            asked = replace(rules, logprobs=bool(body.get("logprobs")))
            text = complete(self.target, prompt, n, asked, self.draft, self.K, sampling, rng)
            choice = self.choice(prompt, text.tokens, text.logprobs, body)
            made.append(choice | {"finish_reason": text.finish_reason})
        return made

    def rules(self, body: dict[str, Any]) -> Constraints:
        """The constraints of a request's fields.

        Raises ValueError for those that make no sense, for `stream`, which is not there, and for
        any constraint of a server with a bug, which has it in a decoder that takes none.
        """
        if body.get("stream"):
            raise ValueError("this server does not stream; leave stream out")
        stop = body.get("stop") or []
        regex = (body.get("structured_outputs") or {}).get("regex")
        repetition = body.get("repetition_penalty")
        rules = Constraints(
            None if regex is None else Grammar(regex, self.chars),
            {int(token): by for token, by in (body.get("logit_bias") or {}).items()},
            body.get("presence_penalty") or 0.0,
            body.get("frequency_penalty") or 0.0,
            1.0 if repetition is None else repetition,  # 0 is refused, and no default
            body.get("min_p") or 0.0,
            [self.tokenizer.encode(x) for x in ([stop] if isinstance(stop, str) else stop)],
        )
        if not rules.free and self.decode not in (plain_generate, speculative_generate):
            raise ValueError("a server with a bug takes no constraints; leave them out")
        return rules

    @torch.no_grad()
    def read(self, prompt: list[int], body: dict[str, Any]) -> list[dict[str, Any]]:
        """The prompt itself as a choice, with what the target says of each token but the first."""
        logits, _, _ = self.target(torch.tensor([prompt]))
        return [self.choice(prompt, prompt, logits[0].log_softmax(-1)[:-1], body)]

    def choice(
        self, prompt: list[int], tokens: Sequence[int], logs: Tensor, body: dict[str, Any]
    ) -> dict[str, Any]:
        """A choice of these tokens; logs (n, V), or (n - 1, V) where nothing precedes the first."""
        made = {"text": self.tokenizer.decode(tokens), "finish_reason": "length"}
        if body.get("return_token_ids"):
            made |= {"token_ids": list(tokens), "prompt_token_ids": prompt}
        if body.get("logprobs"):
            by_id = body.get("return_tokens_as_token_ids")
            names = [f"token_id:{i}" if by_id else char for i, char in enumerate(self.chars)]
            told = logprobs(tokens, logs, min(body["logprobs"], len(names)), names)
            made["logprobs"] = told
        return made

    @property
    def chars(self) -> Sequence[str]:
        """The characters, in order of their tokens."""
        return self.tokenizer.chars


def logprobs(tokens: Sequence[int], logs: Tensor, top: int, names: Sequence[str]) -> dict[str, Any]:
    """Completions' `logprobs`: of each token, of the `top` likeliest there, and of itself."""
    skipped = len(tokens) - len(logs)  # the first token, after nothing
    said: dict[str, Any] = {"tokens": [names[token] for token in tokens]}
    said["token_logprobs"], said["top_logprobs"] = [None] * skipped, [None] * skipped
    best = logs.topk(top).indices.tolist()
    for token, row, likeliest in zip(tokens[skipped:], logs.tolist(), best, strict=True):
        said["token_logprobs"].append(row[token])
        said["top_logprobs"].append({names[i]: row[i] for i in dict.fromkeys([*likeliest, token])})
    return said


def handler(completions: Completions) -> type[BaseHTTPRequestHandler]:
    """What http.server calls for each request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self):
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send(200, completions.answer(body))
            except (ValueError, TypeError, LookupError, RuntimeError) as error:
                self.send(400, {"error": {"message": str(error)}})

        def send(self, code: int, answer: dict[str, Any]):
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


def open_server(
    bug: int | None = None, draft: str = "transformer", K: int = 4, port: int = 0
) -> ThreadingHTTPServer:
    """A server of our shipped models on this machine, not yet serving; port 0 takes a free one.

    Raises ValueError if there is no such bug of a chain, or no such draft.
    """
    if draft not in DRAFTS:
        raise ValueError(f"no draft {draft!r}; there are {', '.join(DRAFTS)}")
    chains = [bug.number for bug in BUGS if bug.decoder == "chain"]
    if bug is not None and bug not in chains:
        raise ValueError(f"no bug {bug} of a chain; there are {chains[0]} to {chains[-1]}")
    target, tokenizer = target_of(bug)
    guesses = {
        "none": lambda: None,
        "transformer": transformer.load,
        "lookup": lambda: PromptLookupDraft(target.config.vocab_size),
    }[draft]()
    decode = plain_generate if draft == "none" else speculative_generate
    decode = decode if bug is None else mutant(BUGS[bug - 1])
    completions = Completions(decode, target, guesses, tokenizer, K)
    return ThreadingHTTPServer(("127.0.0.1", port), handler(completions))


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted. Raises ValueError or OSError if that cannot be done."""
    parser = argparse.ArgumentParser(
        prog="nanogpt serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    how = f"{', '.join(DRAFTS)}; default: %(default)s"
    parser.add_argument("--draft", default="transformer", help=how)
    parser.add_argument("--K", type=int, default=4, help="drafted tokens, default: %(default)s")
    parser.add_argument("--bug", type=int, metavar="N", help="with this bug of the gallery in it")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with open_server(given.bug, given.draft, given.K, given.port) as server:
        address = f"http://127.0.0.1:{server.server_port}/v1"
        print(f"nanogpt audit {address}   # in another terminal; Ctrl-C ends this one", flush=True)
        server.serve_forever()
    return 0
