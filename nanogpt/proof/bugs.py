"""The bugs of the gallery: real ones of real decoders, each a small edit of our own code.

Each belongs to a kind of decoder, and the table of these, `nanogpt.proof.decoders.KINDS`, says
which chapter shows it. `nanogpt.proof.gallery` serves the package with one in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One bug: `old` in `module` is replaced by `new`, and so are the pairs of `also`.

    kind: "biased" output, "slow" only, or an "error" of length or count. caught_by: the check that
    is meant for it. seen_in: where the like of it was found, if it is public. decoder: the kind of
    the one that has the bug, a key of KINDS. chapter: where it is shown, if not with its kind.
    """

    number: int
    title: str
    kind: str
    module: str
    old: str
    new: str
    caught_by: str
    seen_in: str = ""
    decoder: str = "chain"
    chapter: str = ""
    also: tuple[tuple[str, str], ...] = ()


BUGS = [
    Bug(1, "on rejection, resample from p instead of the residual", "biased", "speculative",
        "residual(p[i], q[i])", "p[i]",
        "exact", "romsto/Speculative-Decoding (with an n-gram draft)"),
    Bug(2, "residual not clamped at 0: the sign is dropped", "biased", "speculative",
        "(p - q).clip(0)", "abs(p - q)", "exact"),
    Bug(3, "p where q belongs in the residual, so that it is empty and falls back to p", "biased",
        "speculative", "residual(p[i], q[i])", "residual(p[i], p[i])", "exact"),
    Bug(4, "on rejection, only the rejected token is removed from p", "biased", "speculative",
        "residual(p[i], q[i])",
        "np.where(np.arange(len(p[i])) == token, 0, p[i]) / (1 - p[i, token])",
        "exact", "SafeAILab/EAGLE#20"),
    Bug(5, "candidates are drawn from another q than the one that is divided by", "biased",
        "speculative", "rng.categorical(q)", "rng.categorical(draft.get_probs(tokens))",
        "exact", "huggingface/transformers#47932, #32867; jaymody/speculative-sampling#3 "
        "(there, the raw q is divided by, and the draw is processed or the argmax)"),
    Bug(6, "accept test and resampling share one random number", "biased", "sampling",
        "return bool(self._uniforms.random() < probability)",
        "u, uniforms = self._uniforms.random(), self._uniforms\n\n"
        "        class Again:  # hands out the same u once more\n"
        "            def random(_):\n"
        "                self._uniforms = uniforms\n"
        "                return u\n\n"
        "        if u >= probability:\n"
        "            self._uniforms = Again()\n"
        "        return u < probability",
        "frequencies", "sgl-project/sglang#7207; vllm-project/vllm-ascend#16370"),
    Bug(7, "the generator is seeded again in each round", "biased", "speculative",
        "        candidates, q = steps.draft(",
        "        rng = RandomSource(0)\n        candidates, q = steps.draft(",
        "exact", "feifeibear/LLMSpeculativeSampling (before each accept test, if a seed is given)"),
    Bug(8, "bonus token by argmax while sampling", "biased", "speculative",
        "rng.categorical(p[len(candidates)])",
        "int(p[len(candidates)].argmax())", "exact", "shreyansh26/Speculative-Decoding"),
    Bug(9, "bonus token drawn from row K-1 instead of K", "biased", "speculative",
        "p[len(candidates)])]", "p[len(candidates) - 1])]", "exact"),
    Bug(10, "candidates after a rejection are kept", "biased", "speculative",
        "q[i]))]", "q[i])), *candidates[i + 1 :]]", "exact"),
    Bug(11, "every draft is accepted", "biased", "speculative",
        "rng.bernoulli(min(1.0, p[i, token] / q[i, token]))", "rng.bernoulli(1.0)",
        "exact", "huggingface/transformers#28508"),
    Bug(12, "p is read one position off", "biased", "speculative",
        "min(1.0, p[i, token] / q", "min(1.0, p[i + 1, token] / q",
        "exact", "huggingface/transformers#28166 (an “incorrect indexing operation”)"),
    Bug(13, "trim keeps one entry too many: a rejected token stays", "biased", "cache",
        "position + num_emitted)", "position + num_emitted + 1)",
        "cache", "mmcmanus1/Torch-Velocity"),
    Bug(14, "trim keeps one entry too few", "slow", "cache",
        "position + num_emitted)", "position + num_emitted - 1)",
        "cache"),
    Bug(15, "no trim at all", "biased", "speculative",
        "steps.trim(new_kvs, len(emitted), n)", "new_kvs",
        "cache", "ml-explore/mlx-lm#1109 (for caches that cannot be trimmed)"),
    Bug(16, "the prompt's last token is cached, then fed again", "biased", "generate",
        "self.past_kvs: KVCache | None = None",
        "self.past_kvs: KVCache | None = prefill(target, self.tokens)",
        "cache", "mmcmanus1/Torch-Velocity"),
    Bug(17, "positions restart at 0 with a cache", "biased", "model",
        "torch.arange(P, P + T, device", "torch.arange(0, T, device",
        "greedy", "czhou578/nanoGPT-inference (in plain cached decoding)"),
    Bug(18, "several tokens after a cache, and no causal mask", "biased", "model",
        ".tril(diagonal=P)", ".tril(diagonal=P + T if P else 0)",
        "exact", "czhou578/nanoGPT-inference (in the prefill)"),
    Bug(19, "greedy compares softmax probabilities at temperature 1", "biased", "sampling",
        "if self.temperature == 0:\n",
        "if self.temperature == 0:\n            return torch.softmax(logits, dim=-1)\n",
        "greedy", "romsto/Speculative-Decoding"),
    Bug(20, "a stop rule looks at a drafted token, discards it, and p is sampled instead", "biased",
        "speculative", "        draft_probs.append(q)\n        tokens.append(rng.categorical(q))\n",
        "        token = rng.categorical(q)\n"
        "        if q[token] < 0.3:\n"
        "            break\n"
        "        draft_probs.append(q)\n        tokens.append(token)\n",
        "exact"),
    Bug(21, "u <= p/q accepts a token of probability 0 at u = 0", "biased", "sampling",
        "self._uniforms.random() < probability", "self._uniforms.random() <= probability",
        "support", "sgl-project/sglang#35771"),
    Bug(22, "top-p drops the token that crosses the threshold", "biased", "sampling",
        "ranked.cumsum(-1) - ranked < top_p",
        "(ranked.cumsum(-1) < top_p) | (ranked == ranked[..., :1])",
        "exact", "shreyansh26/Speculative-Decoding"),
    Bug(23, "the draft's cache is not rewound after a rejection", "slow", "drafts/transformer",
        "if kept < len(self.tokens):", "if kept < 0:", "draft"),
    Bug(24, "the draft's cache misses the last accepted token", "slow", "drafts/transformer",
        "return context[kept:]",
        "return context[kept:][-1:] if kept else context",
        "draft", "ohdearquant/lattice#1396; lablup/mlxcel#994 (two entries)"),
    Bug(25, "the draft's positions are one ahead after the prompt", "slow", "drafts/transformer",
        "self.model(idx, past_kvs=self.past_kvs)",
        "self.model(\n            idx, past_kvs=self.past_kvs, "
        "pos=torch.arange(n := idx.shape[1]) + (\n"
        "                (len(self.tokens) > n) * (len(self.tokens) - n + 1)\n"
        "            )\n        )",
        "draft", "sgl-project/sglang#25015 (there, of the drafted tokens only)"),
    Bug(26, "the draft sees a shorter context than it may", "slow", "drafts/transformer",
        "context[window_start(len(context), self.model.config.block_size) :]", "context[-2:]",
        "draft"),
    Bug(27, "a stop token inside an accepted block is ignored", "error", "generate",
        "emitted[: emitted.index(self.stop_token) + 1]", "emitted",
        "accounting", "huggingface/transformers#47912"),
    Bug(28, "more tokens than max_new_tokens", "error", "generate",
        "min(self.end - len(self.tokens), self.block_size - self.position)",
        "(self.block_size - self.position)",
        "accounting", "jaymody/speculative-sampling; tanishqkumar/beyond-nanogpt"),
    Bug(29, "a rejection in the last place is counted as accepted", "error", "generate",
        "return len(self.emitted) - 1", "return min(len(self.emitted), len(self.candidates))",
        "accounting", "czhou578/nanoGPT-inference"),
    Bug(30, "tokens past the stop are counted in the tokens per pass", "error", "generate",
        "return len(self.tokens) / self.target_passes if",
        "return sum(len(r.emitted) for r in self.rounds) / self.target_passes if",
        "accounting", "vllm-project/vllm#56101"),
    Bug(31, "silently short output when the window is full", "error", "speculative",
        "while not text.done:",
        "while not text.done and len(text.tokens) < text.target.config.block_size:",
        "accounting", "czhou578/nanoGPT-inference"),
    Bug(32, "stop token 0 is treated as no stop token", "error", "generate",
        "if self.stop_token in emitted:", "if self.stop_token and self.stop_token in emitted:",
        "accounting", "feifeibear/LLMSpeculativeSampling (there, drawing token 0 is an error)"),
    Bug(33, "siblings with replacement: duplicates are skipped", "biased", "trees/rules",
        "            token = tree.tokens[child]\n            if q[child, token] == 0:\n",
        "            token = tree.tokens[child]\n"
        "            if token in [tree.tokens[x] for x in children[node + 1] if x < child]:\n"
        "                continue\n"
        "            if q[child, token] == 0:\n",
        "exact", decoder="with"),
    Bug(34, "siblings without replacement: q zeroed by the rule, but not normalised again",
        "biased", "trees/rules",
        "            if rng.bernoulli(min(1.0, left[token] / q[child, token])):\n"
        "                break\n"
        "            left = residual(left, q[child])\n",
        "            row = q[children[node + 1][0]].copy()\n"
        "            row[[tree.tokens[x] for x in children[node + 1] if x < child]] = 0\n"
        "            if rng.bernoulli(min(1.0, left[token] / row[token])):\n"
        "                break\n"
        "            left = residual(left, row)\n",
        "exact", decoder="without"),
    Bug(35, "siblings without replacement, tested with the whole q", "biased", "drafts/grown",
        "            picked.append((token, q))\n",
        "            picked.append((token, picked[0][1] if picked else q))\n",
        "exact", "SafeAILab/EAGLE#74 (asked there, and answered)", decoder="without"),
    Bug(36, "a fixed top-k treated as drawn", "biased", "drafts/grown",
        "[(token, one_hot(torch.tensor(token), len(q)).double()) for token in kept]",
        "[(token, q) for token in kept]",
        "exact", "NJUNLP/MCSD; MARS (`utils.py`)", decoder="fixed"),
    Bug(37, "a node that several paths share is judged again for each path", "biased",
        "trees/rules",
        "            if rng.bernoulli(min(1.0, left[token] / q[child, token])):\n",
        "            coins = children[child + 1] or [child]  # one for each path through it\n"
        "            if any([rng.bernoulli(min(1.0, left[token] / q[child, token])) for _ in coins]"
        "):\n",
        "exact", "FasterDecoding/Medusa (sampling, not “fast”); foundation-model-stack/"
        "fms-extras#12", decoder="fixed"),
    Bug(38, "after the walk, a fresh draw from p instead of from what is left of it", "biased",
        "trees/rules", "            return path, rng.categorical(left)\n",
        "            return path, rng.categorical(p[node + 1])\n",
        "exact", "FasterDecoding/Medusa", decoder="fixed"),
    Bug(39, "random numbers drawn once and used in every round", "biased", "trees/loop",
        "        path, token = steps.accept(tree, p, rng)\n",
        "        judge = rng\n"
        '        if hasattr(rng, "_uniforms"):\n'
        "            if not text.rounds:\n"
        "                drawn = [rng._uniforms.random() for _ in range(99)]\n"
        '            tape = type("Tape", (), {"random": iter(drawn).__next__})\n'
        "            judge = RandomSource(0, tape)\n"
        "        path, token = steps.accept(tree, p, judge)\n",
        "rounds", "Infini-AI-Lab/Sequoia (`SpecTree.py`)", decoder="without"),
    Bug(40, "block verification stops at the first failure", "biased", "trees/rules",
        "    if rng.bernoulli(joint[K]):\n",
        "    for i in range(1, K + 1):  # forward\n"
        "        S = (joint[i] * p[i] - q[i]).clip(0).sum() if i < K else 0\n"
        "        off = S + 1 - joint[i]\n"
        "        h = joint[K] if i == K else S / off if off > 0 else 1.0\n"
        "        if not rng.bernoulli(min(1.0, h)):\n"
        "            i -= 1\n"
        "            return [*candidates[:i], rng.categorical(residual(joint[i] * p[i], q[i]))]\n"
        "    if True:  # none failed\n",
        "exact",
        "demanded in a review of vllm-project/vllm-ascend#11985", decoder="block"),
    Bug(41, "block verification's last draw takes p without P", "biased", "trees/rules",
        "left = above[i] / excess[i] if excess[i] > 0 else p[i]", "left = residual(p[i], q[i])",
        "exact", "vllm-project/vllm-ascend#7807", decoder="block"),
    Bug(42, "drawn nodes are pruned by their own token's probability", "biased", "drafts/grown",
        "                for token, row in self.pick(q, width, sampling, rng):\n",
        "                for token, row in self.pick(q, width, sampling, rng):\n"
        "                    if row[token] < 0.3:\n"
        "                        continue\n",
        "exact", decoder="without"),
    Bug(43, "cousins are visible in the mask", "biased", "trees/loop",
        "        pos = mask.sum(-1) - 1\n",
        "        pos = mask.sum(-1) - 1\n"
        "        mask = torch.ones_like(mask).tril(text.cache_length)  # all nodes before\n",
        "nodes", "vllm-project/vllm#17560", decoder="without"),
    Bug(44, "a node's position is its index in the tree", "biased", "trees/loop",
        "        pos = mask.sum(-1) - 1\n",
        "        pos = text.cache_length + torch.arange(len(mask), device=mask.device)\n"
        "        pos = pos.clamp(max=text.block_size - 1)\n",
        "nodes", "lablup/mlxcel#1214; NVIDIA/TensorRT-LLM#13081", decoder="without"),
    Bug(45, "the cache keeps the first nodes instead of the path", "biased", "trees/tree",
        "*(nodes + node for node in path)]", "*range(nodes, nodes + len(path))]",
        "cache", "sgl-project/sglang#15360, #26866", decoder="without"),
    Bug(46, "the draft's random number is used again for the next draw", "biased", "sampling",
        "        u = self._uniforms.random() * sums[-1]",
        '        noise = vars(self).pop("noise", None)\n'
        "        if noise is None:\n"
        "            noise = self.noise = self._uniforms.random()\n"
        "        u = noise * sums[-1]",
        "frequencies", "vllm-project/vllm#47386, #54282 (by the draw after a rejection)",
        chapter="17"),
    Bug(47, "the features come from one block lower", "slow", "trees/tree",
        "streams[layer - 1] for", "streams[layer - 2] for",
        "incremental", "vllm-project/vllm#43671; sgl-project/sglang#32334", decoder="eagle"),
    Bug(48, "a feature is paired with its own token instead of the next", "slow", "drafts/eagle",
        "text.tokens[known - P :]", "text.tokens[known - P - 1 : -1]",
        "incremental", decoder="eagle"),
    Bug(49, "feature and embedding side by side in the other order than in training", "slow",
        "drafts/eagle", "[token, self.norm_feature(feature)]",
        "[self.norm_feature(feature), token]",
        "incremental", "ml-explore/mlx-lm#1469; sgl-project/sglang#6423", decoder="eagle"),
    Bug(50, "what the draft made of its own features stays where guesses were accepted", "slow",
        "drafts/eagle",
        "        return self.guess(out, past, min(self.K, most), sampling, rng)\n",
        "        tree = self.guess(out, past, min(self.K, most), sampling, rng)\n"
        "        for token in tree.tokens[:-1]:\n"
        "            out, past = self.head(out, text.hidden.new_tensor([[token]]).long(), past)\n"
        "        pairs = text.memory(self, Pairs)\n"
        "        pairs.past, pairs.true = past, past.shape[3]\n"
        "        return tree\n",
        "incremental", "vllm-project/vllm#14649", decoder="eagle"),
    Bug(51, "the draft's cache lacks the last guess where all were accepted", "slow",
        "drafts/eagle", "        pairs.past, pairs.true = past, P\n",
        "        pairs.past, pairs.true = past, P\n"
        "        if text.rounds and text.rounds[-1].n_accepted == self.K:\n"
        "            past[..., P - 2, :] = 0  # its slot was never written\n",
        "incremental", "Kangaroo's adapter", decoder="eagle"),
    Bug(52, "the draft's cache is not filled from the prompt", "slow", "drafts/eagle",
        "Pairs(0, self.head.empty()))\n",
        "Pairs(0, F.pad(self.head.empty(), (0, 0, len(text.hidden) - 1, 0)), "
        "len(text.hidden) - 1))\n",
        "incremental", "ml-explore/mlx-lm#990; ikawrakow/ik_llama.cpp#1757", decoder="eagle"),
    Bug(53, "a tree is verified as a chain: each node after the one before it", "slow",
        "trees/loop",
        "        tree = steps.draft(draft, text, text.room, sampling, rng)\n",
        "        tree = steps.draft(draft, text, text.room, sampling, rng)\n"
        "        n = min(len(tree.tokens), text.room)\n"
        "        tree = Tree(tree.tokens[:n], list(range(-1, n - 1)), tree.q[:n])\n",
        "second", "NVIDIA/TensorRT-LLM#18210", decoder="fixed", chapter="19"),
    Bug(54, "the batch is clamped to its minimum, and the next token drawn from p", "biased",
        "serving/batch",
        "        path, token = seat.steps.accept(tree, p, seat.rng)\n",
        "        if seat is seats[0]:  # all rows are judged first\n"
        "            walks = [x.steps.accept(trees[b], verified[b][0], x.rng) "
        "for b, x in enumerate(seats)]\n"
        "            least, walks = min(len(path) for path, _ in walks), iter(walks)\n"
        "        path, token = next(walks)\n"
        "        if len(path) > least:\n"
        "            path = path[:least]\n"
        "            token = seat.rng.categorical(p[[-1, *path][-1] + 1])\n",
        "product", decoder="batch"),
    Bug(55, "one rng for all rows: each draws the same numbers", "biased", "serving/batch",
        "[RandomSource(b) for b in range(B)]", "[RandomSource(0) for _ in range(B)]",
        "independent", decoder="batch"),
    Bug(56, "a row that rejected more than its neighbours is filled up with zeros, not masked",
        "biased", "serving/batch", "(first <= column) & (column <= first + pos[..., None])",
        "column <= first + pos[..., None]",
        "ragged", "Blaizzy/mlx-vlm#2113", decoder="batch"),
    Bug(57, "rows are answered in the order in which they finished", "biased", "serving/batch",
        "generation() for seat in seats]",
        "generation() for seat in sorted(seats, key=lambda seat: len(seat.text.rounds))]",
        "alone", "vllm-project/vllm#14645 (within a batch: in the order of a dict's keys)",
        decoder="batch"),
    Bug(58, "a finished row goes on until the last one is done", "error", "serving/batch",
        "    while running := [seat for seat in seats if not seat.text.done]:\n"
        "        batch_round(target, running)\n",
        "    while not all(seat.text.done for seat in seats):\n"
        "        batch_round(target, seats)\n",
        "leaving", decoder="batch"),
    Bug(59, "blocks are reserved for the K guesses, not for K+1 tokens", "error", "serving/paged",
        "for i in range(n // self.size, -(-(n + T) // self.size)):",
        "for i in range(n // self.size, -(-(n + T - 1) // self.size)):",
        "pool", "vllm-project/vllm#50531 (in its warm-up: no room for what is drafted)",
        decoder="paged"),
    Bug(60, "blocks are published before their tokens are verified", "biased", "serving/server",
        "        request.take_part(n, p, hidden, new_kvs)\n",
        "        guesses = request.tree.tokens if request.tree else []\n"
        "        cached = [*request.tokens[request.start :], *guesses]\n"
        "        self.memory.pool.publish(cached, new_kvs)\n"
        "        request.take_part(n, p, hidden, new_kvs)\n",
        "publish", decoder="paged"),
    Bug(61, "blocks are not freed after a rejection", "error", "serving/paged",
        "            self.pool.release(surplus)\n", "",
        "pool", "sgl-project/sglang-jax#1147; sgl-project/sglang#13826", decoder="paged"),
    Bug(62, "a cached roll-out is kept, and used again where the same token comes", "biased",
        "drafts/ahead",
        "            token = rollout.source.categorical(q[row], cdf[row])\n",
        '            cache = vars(self).setdefault("cache", {})\n'
        "            key = tuple(self.tree.tokens[node] for node in rollout.nodes)\n"
        "            if key not in cache:\n"
        "                cache[key] = rollout.source.categorical(q[row], cdf[row])\n"
        "            token = cache[key]\n",
        "outcomes", decoder="ahead"),
    Bug(63, "on a miss, a guess is accepted if it is the argmax, and p drawn from else", "biased",
        "trees/loop",
        "        path, token = steps.accept(tree, p, rng)\n",
        "        if draft.answers[-1].drawn:\n"
        "            path, token = steps.accept(tree, p, rng)\n"
        "        else:  # a miss\n"
        "            best, n = p.argmax(-1).tolist(), 0\n"
        "            while tree.tokens[n:] and tree.tokens[n] == best[n]:\n"
        "                n += 1\n"
        "            path, token = list(range(n)), rng.categorical(p[n])\n",
        "outcomes", "tanishqkumar/ssd#24", decoder="ahead"),
    Bug(64, "guesses survive a preemption", "error", "serving/server",
        "        request.tree, request.preempted = None, request.preempted + 1\n",
        "        request.preempted += 1\n",
        "preemption", "vllm-project/vllm#31955, #28558", decoder="server", also=(
            ("request, self.take_part, request, n, p, seen, new_kvs)\n",
             "request, self.take_part, request, n, p, seen, new_kvs)\n"
             "            for request in self.queue.running:  # guess at once\n"
             "                if not request.done and request.to_do == 1 and request.room > 0:\n"
             "                    self.safely(request, self.guess, request, 1, self.policy(1))\n"),
        )),
    Bug(65, "a draft knows its last guesses by the list's identity; a server rebuilds it", "slow",
        "drafts/lookahead",
        "if window.asked == len(text.rounds) - 1:",
        "if text.rounds and text.rounds[-1].candidates is window.asked:",
        "memory", decoder="server", also=(
            ("window.asked, window.ends = len(text.rounds), row", "window.ends = row"),
            ("        tokens = [token for _, token in nodes]\n",
             "        window.asked = tokens = [token for _, token in nodes]\n"),
        )),
    Bug(66, "a draft remembers one text, and reads each of several anew at every turn", "slow",
        "drafts/eagle",
        "        pairs = text.memory(self, lambda: Pairs(0, self.head.empty()))\n",
        "        if vars(self).get(\"text\") is not text:\n"
        "            self.text, self.pairs = text, Pairs(0, self.head.empty())\n"
        "        pairs = self.pairs\n",
        "memory", decoder="server"),
    Bug(67, "a freed block is taken as it is: a NaN in it reaches the next text", "biased",
        "serving/paged", "        self.entries[:, :, block] = 0\n", "",
        "leftovers", "vllm-project/vllm#53856; Dao-AILab/flash-attention#1745; "
        "nod-ai/amd-shark-ai#738", decoder="paged"),
    Bug(68, "the noise that drew a guess is used again, in the p/q rule", "biased", "same",
        "        emitted.append(rng.categorical(p))\n        if emitted[-1] != guess:\n"
        "            return emitted\n",
        "        if guess is None:\n"
        "            return [*emitted, rng.categorical(p)]\n"
        "        q = draft_probs[len(emitted)]\n"
        "        if not rng.bernoulli(min(1.0, float(p[guess] / q[guess]))):\n"
        "            return [*emitted, rng.categorical(residual(p.numpy(), q.numpy()))]\n"
        "        emitted.append(guess)\n"
        "        rng.index += 1  # the next place\n",
        "same", "vllm-project/vllm#47386, #54282", decoder="same", also=(
            ("import CHAIN, Draft, check_draft", "import CHAIN, residual, Draft, check_draft"),
        )),
    Bug(69, "the index stays where it is: one noise for all places of a text", "biased", "same",
        "        self.index += 1\n", "",
        "fair", "NVIDIA/TensorRT-Edge-LLM#211 (in plain decoding: an offset of 0 at every step)",
        decoder="same"),
    Bug(70, "a forbidden guess is dropped, and the next token drawn from the masked p", "biased",
        "serving/constraints",
        "    rows = sampling.after(candidates)\n",
        "    grammar, state = sampling.reply.constraints.grammar, sampling.reply.past.state\n"
        "    for n, token in enumerate(candidates if grammar else []):\n"
        "        if not grammar.allowed[state, token]:\n"
        "            del candidates[n:]  # it need not be judged\n"
        "            break\n"
        "        state = grammar.next[state, token]\n"
        "    rows = sampling.after(candidates)\n",
        "constraints", "vllm-project/vllm#14702 (in its scheduler; exact where guesses are not "
        "drawn)", decoder="constrained"),
    Bug(71, "the rules of the first row hold for all rows of a pass", "biased",
        "serving/constraints",
        "pasts.append(rules.after(pasts[parent + 1], token))", "pasts.append(reply.past)",
        "constraints", "sgl-project/sglang#22049 (of penalties), #33643 (where only the last "
        "token of a round is counted: “the better the draft model, the weaker the penalties”)",
        decoder="constrained"),
    Bug(72, "a stop string is looked for at the end of a round, and passed over within", "error",
        "serving/constraints",
        "            found = self.constraints.found(self.tokens[self.n_prompt :])\n",
        "            found = None\n"
        "            if row == self.rows_of(done)[len(new) - 1]:  # the round's last\n"
        "                found = self.constraints.found(self.tokens[self.n_prompt :])\n",
        "stops", "sgl-project/sglang#23802, #27637", decoder="constrained"),
    Bug(73, "q is handed on in another order than its tokens", "biased", "drafts/pairs",
        "torch.from_numpy(np.array(rows).reshape(K, self.vocab_size))",
        "torch.from_numpy(np.array(rows).reshape(K, self.vocab_size)[:, ::-1].copy())",
        "exact", "huggingface/transformers 5.23.0 (`AssistantToTargetTranslator`, where the "
        "draft's head is pruned)", decoder="pairs"),
    Bug(74, "the draft reads the target's token numbers as its own", "slow", "drafts/pairs",
        "return self.tokenizer.encode(self.tokenizer.letters.decode(context))",
        "return list(context)",
        "spelling", "sgl-project/sglang#24051 (there, they mean other text)", decoder="pairs"),
    Bug(75, "the last token of the text is taken for finished", "slow", "drafts/pairs",
        "        return made\n\n    def spelled", "        return made[-1:]\n\n    def spelled",
        "spelling", "ggml-org/llama.cpp#12635 (“token healing”, left for later)",
        decoder="pairs"),
    Bug(76, "the state is never taken back: rejected guesses stay in it", "biased", "targets/state",
        "        if len(rows) < tokens[0].shape[2]:\n"
        "            tokens = [t[:, :, list(rows)] for t in tokens]\n", "",
        "states", "ml-explore/mlx-lm#1111 (a trim that does nothing); "
        "vllm-project/vllm#50272 (of a convolution's state)", decoder="state"),
    Bug(77, "a step without guesses reads the first of the states that the last round left",
        "biased", "targets/state",
        "        return self.layers[layer].after(self.taken)\n",
        "        layer, rows = self.layers[layer], self.taken\n"
        "        if self.plain and isinstance(layer, States) and self.before[0]:\n"
        "            rows = rows[:1]\n"
        "        return layer.after(rows)\n",
        "states", "vllm-project/vllm#40875, #56531; sgl-project/sglang#26351 (n-gram guesses)",
        decoder="state", also=(
            ("        self.more = more  #",
             "        self.plain = False\n        self.more = more  #"),
            ("        if past_kvs is not None and attn_mask is not None:\n",
             "        if past_kvs is not None:\n"
             "            past_kvs.plain = idx.shape[1] == 1\n"
             "        if past_kvs is not None and attn_mask is not None:\n"),
        )),
    Bug(78, "the state runs through a tree's nodes in their order, siblings too", "biased",
        "targets/state",
        "        path = attn_bias[..., -T:] == 0\n",
        "        path = torch.ones_like(attn_bias[..., -T:]).tril() > 0\n",
        "states", decoder="state"),
    Bug(79, "the draft learns between a draw and its verdict, and q is asked for anew", "biased",
        "drafts/learning",
        "        own.study(text, sampling)\n"
        "        drawn = own.reader.draw(text.tokens, min(self.K, most), sampling, rng)\n"
        "        return Tree.chain(*drawn)\n",
        "        drawn = own.reader.draw(text.tokens, min(self.K, most), sampling, rng)\n"
        "        own.study(text, sampling)  # while the pass is under way\n"
        "        tokens, q = drawn[0], torch.zeros_like(drawn[1])\n"
        "        for n in range(len(tokens)):\n"
        "            q[n] = sampling.of_probs(own.reader.get_probs(text.tokens + tokens[:n]))\n"
        "        return Tree.chain(tokens, q)\n",
        "taught", decoder="learning"),
    Bug(80, "what one request has taught is kept for the next", "slow", "drafts/learning",
        "self.student if self.shared else self.student.copy()", "self.student",
        "apart", "ggml-org/llama.cpp#27852 (kept guesses fell from 86 % to 11 %)",
        decoder="learning"),
    Bug(81, "the draft's cache outlives the weights that made it", "slow", "drafts/learning",
        "if self.lessons != self.student.lessons:", "if False:",
        "lessons", decoder="learning"),
    Bug(82, "guesses are drawn first, and the budget goes to those that came out likely", "biased",
        "drafts/best",
        "        kept = sure(q) if drawn[i] else float(q.max())\n",
        "        token = roots[i].rng.categorical(q) if drawn[i] else int(q.argmax())\n"
        "        kept = float(q[token])\n",
        "product", decoder="budget", also=(
            ("reached, q, kept\n            heapq", "reached, q, kept, token\n            heapq"),
            ("reached, q, kept = heapq", "reached, q, kept, token = heapq"),
            ("        token = roots[i].rng.categorical(q) if drawn[i] else int(q.argmax())\n"
             "        tokens, parents", "        tokens, parents"),
        )),
    Bug(83, "two drafts guess, and the guesses that came out surer are handed in", "biased",
        "drafts/hybrid",
        "        draft = self.first if self.knows(text.tokens) else self.otherwise\n"
        "        return draft.propose(text, most, sampling, rng)\n",
        "        both = (self.first, self.otherwise)\n"
        "        trees = [draft.propose(text, most, sampling, rng) for draft in both]\n"
        "        return max(trees, key=lambda t: sum(map(float, t.q.gather(1, "
        "t.q.new_tensor(t.tokens).long()[:, None]))))\n",
        "exact", decoder="hybrid"),
    Bug(84, "a state is kept after the pass and before the verdict: rejected guesses are in it",
        "biased", "serving/memory",
        "                made = cache.kept(end)\n",
        "                made = cache.kept(end)\n"
        "                T = next(x.heads[0][0].shape[1] - x.P for x in cache.layers if hasattr(x, "
        "'heads'))\n"
        "                made.layers = [x if hasattr(x, 'heads') else Given(x.after([*range(T)]))\n"
        "                                for x in made.layers]\n",
        "prefix", "vllm-project/vllm#53919 (there, by another request's count)", decoder="prefix",
        also=(("import StateCache\n", "import Given, StateCache\n"),)),
    Bug(85, "a state is kept under a block’s end, and has seen what came after it",
        "biased", "serving/memory",
        "                made = cache.kept(end)\n",
        "                made = cache.kept(end)\n"
        "                made.layers = [x if hasattr(x, 'heads') else Given(x.after(cache.taken))\n"
        "                                for x in made.layers]\n",
        "prefix", "vllm-project/vllm#43559, #47861 (A, then B, then A again)", decoder="prefix",
        also=(("import StateCache\n", "import Given, StateCache\n"),)),
    Bug(86, "a block’s key says where it is, and nothing of the blocks before it", "biased",
        "serving/memory",
        'block_key(keys[-1] if keys else b"", own)', 'block_key(bytes([end]), own)',
        "prefix", decoder="prefix"),
    Bug(87, "a state is kept only where a round ends with a block: hits are rare, and nobody told",
        "slow", "serving/memory",
        "cache.before[0] <= end <= cache.length", "end == cache.length",
        "prefix", "vllm-project/vllm#54360, #57616", decoder="prefix"),
    Bug(88, "a draft that reads features begins after a hit without those of the beginning", "slow",
        "serving/server",
        "share and not self.reads", "share",
        "prefix", decoder="prefix"),
    Bug(89, "who has found a state writes its own into it", "biased", "serving/memory",
        "                    self.kept[key] = StateCache.joined([made])\n",
        "                    self.kept[key] = made = StateCache.joined([made])\n"
        "                    slot = getattr(request, 'slot', made)\n"
        "                    for own, new in zip(slot.layers, made.layers):\n"
        "                        if len(new.value[0]) == 1:\n"
        "                            own.value[0][0].copy_(new.value[0][0])\n",
        "prefix", "vllm-project/vllm#53505 (a copy in the wrong direction)", decoder="prefix",
        also=(
            ("request.past_kvs = self.kept", "request.past_kvs = request.slot = self.kept"),
        )),
    Bug(90, "a step planned ahead knows the rules as they were before the last verdict", "biased",
        "serving/overlap",
        "            return self.verify(*given)\n",
        "            now = [request.past for request, _ in batch]\n"
        "            for request, _ in batch:\n"
        "                request.past = getattr(request, 'known', request.past)\n"
        "            rows = self.verify(*given)\n"
        "            for (request, _), past in zip(batch, now):\n"
        "                request.past = request.known = past\n"
        "            return rows\n",
        "alone", "vllm-project/vllm#26467 (penalties); sgl-project/sglang#25361 (a grammar)",
        decoder="overlap"),
    Bug(91, "a step planned ahead reads what stood in the place of a token not yet known", "biased",
        "serving/overlap",
        "        made = self.worker.submit(verified, *self.inputs(batch))\n",
        "        parts, trees, rows = self.inputs(batch)\n"
        "        parts = [part._replace(tokens=[getattr(request, 'known', part.tokens[0])])\n"
        "                 for part, (request, _) in zip(parts, batch)]\n"
        "        made = self.worker.submit(verified, parts, trees, rows)\n",
        "alone", "vllm-project/vllm#40768, #46899 (there, -1)", decoder="overlap", also=(
            ("                guesses = len", "                request.known = request.tokens[-1]\n"
             "                guesses = len"),
        )),
    Bug(92, "a step is planned ahead with places for one token of each, as if no guess were kept",
        "error", "serving/overlap",
        "most + guesses + 1,", "most + 1,",
        "preemption", "NVIDIA/TensorRT-LLM#16280 (a round ahead of the capacity)",
        decoder="overlap"),
]  # fmt: skip
