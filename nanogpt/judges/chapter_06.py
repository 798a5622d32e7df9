"""The judge of chapter 06's *Your turn*: the trim."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nanogpt.checks import tensors


def trim(mine: Callable) -> None:
    """*Your turn* of 06: the cache after a round, asked of caches whose entries are numbered.

    mine(new_kvs, num_emitted, cache_len_before_verify) returns a cache of the same layers and
    heads, each k and v (B, P, hs). Raises AssertionError for a wrong length, wrong entries, a lost
    layer or a changed argument.
    """
    for before, K, emitted in ((3, 4, 2), (3, 4, 1), (3, 4, 5), (0, 1, 1)):
        keep, n = before + emitted, before + K + 1
        numbers = torch.arange(float(n)).view(1, n, 1).repeat(2, 1, 3)  # two rows, three channels
        layer = tuple((numbers + head, -numbers - head) for head in range(2))
        cache = (layer, tuple((k + 100, v - 100) for k, v in layer))
        given = [t.clone() for t in tensors(cache)]
        made = mine(cache, emitted, before)
        where = f"{before} entries before, K = {K}, {emitted} emitted"
        assert made is not None, "nothing came back: return the cache that is left"
        assert all(map(torch.equal, tensors(cache), given)), "the cache that it was given changed"
        try:
            assert all(isinstance(x, (tuple, list)) for x in (made, made[0], made[0][0]))
            got = [torch.as_tensor(t) for t in tensors(made)]
        except (AssertionError, LookupError, TypeError, ValueError, RuntimeError) as error:
            message = "the cache is layers of heads of pairs, all of them tuples or lists: "
            raise AssertionError(message + "made[0][0] is the (k, v) of a head") from error
        assert len(got) == 8, f"2 layers of 2 heads, k and v, make 8 tensors, not {len(got)}"
        slips = {emitted: "those from before the round are lost", n: "nothing is cut off"}
        slips |= {0: "nothing is left", keep - 1: "an entry of the text is lost"}
        slips |= {keep + 1: "a rejected guess stays"}
        for i, (left, right) in enumerate(zip(got, given, strict=True)):
            name = f"{'kv'[i % 2]} of layer {i // 4}, head {i // 2 % 2}"
            shape, wanted = tuple(left.shape), (2, keep, 3)
            why = slips.get(shape[1], "") if len(shape) == 3 else "three dimensions go in"
            assert shape == wanted, f"{where}: {name} is {shape}, not {wanted}: {why}"
            same = torch.equal(left.float(), right[:, :keep])
            assert same, f"{where}: the entries in {name} are not the first {keep} that were there"
