"""Sixty breaks of one line each: does `make test` still see them all? `python tests/breaks.py`

They were written down before anybody looked at a test, so they ask what the tests see and not what
the tests were made for. Run it after the tests have been made shorter. With numbers it takes
these breaks alone; with --at another checkout's folder, it breaks and tests that one.

Each break names a test that has seen it. Where that one is gone, or `wide`, or sees nothing any
more, the whole file is asked, or those after --tests: whoever sees it there belongs into
the list. All of them must be green without a break, or nothing is said.
"""

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from py_compile import PycInvalidationMode

HERE = Path(__file__).resolve().parents[1]
BREAKS = [  # file of the package, what stands there once, what is put there, a test that sees it
    (  # 1: one node alone is taken for the first
        "trees/tree.py",
        "if list(path) == list(range(len(path))):",
        "if len(path) < 2 or list(path) == list(range(len(path))):",
        "test_tree::test_a_kept_path_is_a_fresh_prefill",
    ),
    (  # 2: another type of 16 bits
        "checkpoint.py",
        "dtype: torch.dtype = torch.float16,",
        "dtype: torch.dtype = torch.bfloat16,",
        "test_checkpoint::test_several_modules_share_a_file_each_under_its_name",
    ),
    (  # 3: the last token alone is not held back
        "serving/constraints.py",
        "for n in range(min(longest - 1, len(reply)), 0, -1):",
        "for n in range(min(longest - 1, len(reply)), 1, -1):",
        "test_constraints::test_a_stream_holds_back_what_may_become_a_stop_string_and_sends_it_if_it_does_not",
    ),
    (  # 4: of two stop strings that end together, the shorter one
        "serving/constraints.py",
        "return len(reply) - max(ends) if ends else None",
        "return len(reply) - min(ends) if ends else None",
        "test_constraints::test_a_stop_string_ends_a_reply_however_rounds_are_cut_and_is_never_sent",
    ),
    (  # 5: a token just at the border of min-p
        "serving/constraints.py",
        "changed = np.where(changed >= least, changed, -np.inf)",
        "changed = np.where(changed > least, changed, -np.inf)",
        "test_constraints::test_tokens_just_at_the_border_of_min_p_stay",
    ),
    (  # 6: what guesses lead to is remembered from an earlier round
        "serving/constraints.py",
        "if self.pasts.get(()) is not self.reply.past:",
        "if () not in self.pasts:",
        "test_constraints::test_a_draft_that_obeys_is_kept_more_often_than_one_that_does_not",
    ),
    (  # 7: a server that does not say how long its answer is
        "data.py",
        "if len(content) < expected:",
        "if len(content) != expected:",
        "test_data::test_a_server_need_not_say_how_long_its_answer_is",
    ),
    (  # 8: the last window is never drawn
        "data.py",
        "torch.randint(len(tokens) - block_size, (batch_size, 1)",
        "torch.randint(len(tokens) - block_size - 1, (batch_size, 1)",
        "test_data::test_a_batch_holds_windows_and_their_next_tokens_from_the_whole_text",
    ),
    (  # 9: a batch whose last row has left
        "targets/fused.py",
        "len(rows) == whole.shape[2]",
        "len(rows) <= whole.shape[2]",
        "test_serve::test_rows_of_one_buffer_are_joined_again_without_a_copy",
    ),
    (  # 10: a cache of which one entry was overwritten
        "targets/fused.py",
        "if any(start < self.lengths[b] for start in starts[self.known[b] :]):",
        "if any(start + 1 < self.lengths[b] for start in starts[self.known[b] :]):",
        "test_fused::test_a_cache_can_be_used_again_until_it_is_overwritten",
    ),
    (  # 11: a prompt that ends in the stop token
        "generate.py",
        "new = self.tokens[self.n_prompt :]",
        "new = self.tokens",
        "test_generate::test_a_stop_token_in_the_prompt_stops_nothing",
    ),
    (  # 12: a token below 0
        "generate.py",
        "or not 0 <= token < vocab_size:",
        "or not token < vocab_size:",
        "test_bad_input::test_the_request",
    ),
    (  # 13: [a-] is a and a dash
        "serving/grammar.py",
        'if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 :][:1] != "]":',
        'if self.text[self.at : self.at + 1] == "-":',
        "test_constraints::test_a_pattern_knows_the_end_of_a_line_and_signs_taken_as_letters",
    ),
    (  # 14: at the end of a chain, what did not come forgives
        "trees/lossy.py",
        "enough = len(later) == window and all(later)",
        "enough = all(later)",
        "test_lossy::test_fly_is_every_coin_of_the_exact_rule_and_its_witnesses",
    ),
    (  # 15: q as it was after its siblings
        "trees/lossy.py",
        "q = tree.q[children[0]]",
        "q = tree.q[children[-1]]",
        "test_lossy::test_each_rules_bill_on_the_toy",
    ),
    (  # 16: a position below 0
        "model.py",
        "inside = 0 <= int(pos.min()) and int(pos.max()) < self.config.block_size",
        "inside = int(pos.max()) < self.config.block_size",
        "test_model::test_a_position_outside_the_window_is_refused",
    ),
    (  # 17: a chance is worked out anew from what was left of p
        "trees/rules.py",
        "if child not in joint:",
        "if True:",
        "test_rules::test_trees_lose_nothing",
    ),
    (  # 18: the noise of the first place at every depth
        "same.py",
        "noise(rng.seed, rng.index + depth, self.vocab_size)",
        "noise(rng.seed, rng.index, self.vocab_size)",
        "test_same::test_favourites_make_the_best_tree_of_so_many_nodes",
    ),
    (  # 19: one token more where the sum is top_p exactly
        "sampling.py",
        "ranked.cumsum(-1) - ranked < top_p",
        "ranked.cumsum(-1) - ranked <= top_p",
        "test_sampling::test_a_set_that_reaches_p_exactly_is_large_enough",
    ),
    (  # 20: top_p is not applied to the draft
        "sampling.py",
        "if self.temperature == 1 and self.top_k is None and self.top_p is None:",
        "if self.temperature == 1 and self.top_k is None:",
        "test_sampling::test_probabilities_are_treated_like_their_logits",
    ),
    (  # 21: a policy's `more` is not asked
        "drafts/adaptive.py",
        "return draft_while(own, *asked, more) if more else own.draw(*asked)",
        "return own.draw(*asked)",
        "test_adaptive::test_a_policy_is_asked_before_each_draw_of_a_draft_that_could_make_its_chain_at_once",
    ),
    (  # 22: a padded row goes back to where it never was
        "targets/state.py",
        "other.T = [n - before if n - before == self.T[b] else -1]",
        "other.T = [n - before]",
        "test_state::test_a_batch_of_uneven_texts_leaves_each_text_its_own_cache",
    ),
    (  # 23: entries in another order
        "targets/state.py",
        "if slots[:P] != list(range(P)) or rows != sorted(rows):",
        "if slots[:P] != list(range(P)):",
        "test_state::test_deeper_than_the_last_pass_is_refused_in_one_line",
    ),
    (  # 24: just as fast is fast enough
        "theory.py",
        "if speed_up(K + 1, K, draft_cost, verify_cost, rest) < 1:",
        "if speed_up(K + 1, K, draft_cost, verify_cost, rest) <= 1:",
        "test_theory::test_at_break_even_the_speed_up_is_one",
    ),
    (  # 25: two seeds share their batches
        "train.py",
        "torch.manual_seed(seed * 1_000_000 + step)",
        "torch.manual_seed(seed + step)",
        "test_train::test_an_update_draws_from_the_seed_and_its_own_number_alone",
    ),
    (  # 26: a model in eval mode is left in train mode
        "train.py",
        "model.train(was_training)",
        "model.train()",
        "test_train::test_evaluate_leaves_the_mode_as_it_was",
    ),
    (  # 27: hidden states of a part of the text
        "trees/loop.py",
        "elif text.past_kvs is not None:  # of a part",
        "elif False:  # of a part",
        "test_tree::test_a_text_that_another_loop_began_has_no_hidden_states_before_its_restart",
    ),
    (  # 28: a parent below -1
        "trees/loop.py",
        "if not all(-1 <= parent < node for node, parent in enumerate(tree.parents)):",
        "if not all(parent < node for node, parent in enumerate(tree.parents)):",
        "test_joints::test_a_tree_whose_parents_do_not_come_first_is_refused",
    ),
    (  # 29: q is a distribution to six places
        "arena/referee.py",
        "if off > 1e-12:",
        "if off > 1e-6:",
        "test_arena::test_a_q_that_is_none_or_depends_on_more_than_the_context_is_refused",
    ),
    (  # 30: a draft that remembers other texts, or draws from torch's own generator, races
        "arena/referee.py",
        "if guessed(made) != guessed(again):",
        "if False:",
        "test_arena::test_a_chain_that_draws_from_another_q_is_refused",
    ),
    (  # 31: a power of two that fits comes twice
        "measure/size.py",
        "if 2**i < last), last]",
        "if 2**i <= last), last]",
        "test_sizing::test_batches_end_with_what_fits_and_name_it_once",
    ),
    (  # 32: milliseconds are taken for seconds
        "measure/load.py",
        "SLO(*(milliseconds / 1e3 for milliseconds in given.slo))",
        "SLO(*given.slo)",
        "test_traffic::test_load_prints_writes_and_draws",
    ),
    (  # 33: what was refused does not come first
        "course/command.py",
        "key=lambda x: x[1].state != REFUSED)",
        "key=lambda x: 0)",
        "test_course::test_of_one_chapter_what_was_refused_comes_before_what_is_open",
    ),
    (  # 34: the last loop alone says whether the samples are too few
        "engines/check.py",
        "blind = any(report.blind for report in sampled.values())",
        "blind = [*sampled.values()][-1].blind",
        "test_your_models::test_samples_that_are_too_few_for_one_loop_are_too_few",
    ),
    (  # 35: an answer that leaves Python
        "course/judged.py",
        "except BaseException as error:",
        "except Exception as error:",
        "test_course::test_an_answer_is_what_the_notebook_would_make_of_it_from_top_to_bottom",
    ),
    (  # 36: an import makes those before it needless
        "course/needed.py",
        "isinstance(self.node, BLOCKS + IMPORTS)",
        "isinstance(self.node, BLOCKS)",
        "test_course::test_a_check_gets_what_it_needs_and_no_more",
    ),
    (  # 37: a guess of 0 is no guess
        "course/notebook.py",
        'return "you did not guess" if guess is None else',
        'return "you did not guess" if not guess else',
        "test_notebook::test_a_guess_may_be_missing",
    ),
    (  # 38: an n-gram that comes again stays the oldest
        "drafts/lookahead.py",
        "after.pop(tuple(gram[1:]), None)",
        "pass",
        "test_lookahead::test_the_pool_keeps_the_latest_and_each_once",
    ),
    (  # 39: the first rounds in place of the last
        "drafts/adaptive.py",
        "for r in rounds[-memory:]:",
        "for r in rounds[:memory]:",
        "test_adaptive::test_acceptance_lengthens_and_shortens_the_draft",
    ),
    (  # 40: the spread of texts in place of their mean's
        "drafts/eagle.py",
        "float(m.std() / len(m) ** 0.5)",
        "float(m.std())",
        "test_eagle::test_alpha_by_depth_is_the_overlap_at_every_place",
    ),
    (  # 41: a chain that does not even begin
        "drafts/ngram.py",
        "if joint < self.least and candidates:",
        "if joint < self.least:",
        "test_drafts::test_a_chain_stops_before_the_guess_that_would_make_the_whole_too_unlikely",
    ),
    (  # 42: two copies of a table share what they learn
        "drafts/learning.py",
        "other.sums = dict(self.sums)",
        "other.sums = self.sums",
        "test_learning::test_a_copy_knows_as_much_and_teaches_nothing_back",
    ),
    (  # 43: a sibling is as likely as if there were none before it
        "drafts/best.py",
        "wait(i, parent, path, reached * (1 - kept), left / left.sum())",
        "wait(i, parent, path, reached, left / left.sum())",
        "test_records::test_a_sibling_is_as_likely_as_its_elders_are_refused_and_it_is_kept",
    ),
    (  # 44: a head is judged by what came before its guess
        "drafts/parallel.py",
        "kept = torch.minimum(q, p[:, i:]).sum(-1).mean()",
        "kept = torch.minimum(q, p[:, :-i]).sum(-1).mean()",
        "test_parallel::test_the_overlap_loss_judges_head_i_by_p_as_it_is_i_tokens_later",
    ),
    (  # 45: whether the last listed token counts depends on the one that came
        "engines/places.py",
        "apart, beyond = logs > border,",
        "apart, beyond = logs >= border,",
        "test_endpoint::test_which_tokens_are_listed_does_not_depend_on_the_one_that_came",
    ),
    (  # 46: n texts by one seed
        "engines/serve.py",
        "(x, seed + i) for x",
        "(x, seed) for x",
        "test_serve::test_requests_without_a_seed_have_dice_of_their_own",
    ),
    (  # 47: q of a draft with more tokens does not sum to 1
        "engines/causal.py",
        "return kept / kept.sum()",
        "return kept",
        "test_your_models::test_a_draft_with_more_or_fewer_tokens_is_fitted_and_lossless",
    ),
    (  # 48: an engine's last token, which no guess brings, is tested as well
        "engines/audit.py",
        "made.append(answers(generate, prompts, n + 1, sampling, seed + done, V))",
        "made.append(answers(generate, prompts, n, sampling, seed + done, V))",
        "test_audit::test_an_engine_is_asked_for_a_token_more_than_is_tested",
    ),
    (  # 49: the first token of a request waits for itself
        "measure/service.py",
        "found = [0.0] * (self.made[0] - 1)",
        "found = [0.0] * self.made[0]",
        "test_traffic::test_what_became_of_a_request_by_hand",
    ),
    (  # 50: what all guesses of a round cost is taken for what one does
        "measure/bench.py",
        'speed_up(brings, k, per_round["draft"] / k, verify, rest)',
        'speed_up(brings, k, per_round["draft"], verify, rest)',
        "test_bench::test_a_row_shows_the_pairs_all_texts_together_and_the_equations_prediction",
    ),
    (  # 51: the last prompt runs past the end
        "measure/clock.py",
        "distance = (len(tokens) - PROMPT) // n",
        "distance = len(tokens) // n",
        "test_bench::test_prompts_are_spread_over_the_text",
    ),
    (  # 52: a letter at an edge of ranks counts one too early
        "proof/statistics.py",
        "edges, right=True)",
        "edges, right=False)",
        "test_audit::test_ranks_are_of_each_samples_own_p",
    ),
    (  # 53: what only the second distribution has is left out
        "proof/exact.py",
        "for x in a | b) / 2",
        "for x in a) / 2",
        "test_exact::test_total_variation",
    ),
    (  # 54: one text's NaN takes the others' rows with it
        "serving/batch.py",
        "if one == sampling and sound[b]]",
        "if one == sampling]",
        "test_server::test_a_text_whose_logits_are_no_numbers_ends_alone_and_nobody_finds_what_it_left",
    ),
    (  # 55: a context that fills the window does not begin anew
        "serving/budget.py",
        "        seat.text.restart_if_full()",
        "        seat.text.done",
        "test_records::test_one_text_under_a_budget_is_what_it_is_alone",
    ),
    (  # 56: of those who share a block and all write, none may keep it
        "serving/paged.py",
        "sum(min(n, self.references[block] - 1) for block, n in shared.items())",
        "sum(n for block, n in shared.items())",
        "test_paged::test_a_write_into_a_shared_block_goes_to_a_copy",
    ),
    (  # 57: a block that was cut in the middle keeps its name
        "serving/paged.py",
        "del self.keys[n // self.pool.size :]",
        "del self.keys[keep:]",
        "test_paged::test_a_shared_block_that_was_cut_in_the_middle_gets_a_name_of_its_own",
    ),
    (  # 58: whoever lost its places begins a second time
        "serving/server.py",
        "request.began = self.clock() if request.began is None else request.began",
        "request.began = self.clock()",
        "test_server::test_a_request_began_when_it_first_ran_however_often_it_lost_its_places",
    ),
    (  # 59: p of another row
        "show/figures.py",
        "p = float(r.target_probs[before + 1, token])",
        "p = float(r.target_probs[before, token])",
        "test_figures::test_a_trees_trace_has_the_p_and_the_q_of_each_tokens_own_row",
    ),
    (  # 60: a guess of 0 is not drawn
        "show/figures.py",
        "if guess is not None:",
        "if guess:",
        "test_figures::test_a_guess_of_0_is_drawn_like_any_other",
    ),
]


def broken(source: str, number: int) -> str:
    """A file's text with the break in it. Exits unless what it changes stands there once."""
    file, old, new, _ = BREAKS[number - 1]
    if source.count(old) != 1:
        sys.exit(f"break {number}: {file} has {source.count(old)} times {old!r}; write it anew")
    return source.replace(old, new)


def copied(at: Path, folder: Path) -> None:
    """What the tests read: package and tests as a copy, the rest by a link."""
    for path in at.iterdir():
        if path.name in ("nanogpt", "tests"):
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, folder / path.name, ignore=leave)
        elif path.name not in (".git", ".pytest_cache"):
            (folder / path.name).symlink_to(path)
    # compiled code goes by what a file holds: by its time, a break of the same second is overlooked
    hashed = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder / "nanogpt", quiet=1, invalidation_mode=hashed)


def seen(folder: Path, tests: list[str]) -> str:
    """The first of these tests that fails, or nothing."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=no"]
    command += ["-p", "no:cacheprovider", *tests]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    found = re.search(r"(?m)^(?:FAILED|ERROR) (?:tests/)?(\S+)", run.stdout)
    none = run.returncode == 5 or (run.returncode == 4 and "not found" in run.stdout + run.stderr)
    if run.returncode and not (found or none):
        sys.exit(f"pytest could not run {tests}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return found[1] if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", type=int, nargs="*", help="of the breaks, default: all")
    parser.add_argument("--at", type=Path, default=HERE, help="the checkout to break")
    parser.add_argument("--tests", nargs="+", help="files, in place of those in the list")
    given, missed = parser.parse_args(), 0
    package, numbers = given.at.resolve() / "nanogpt", given.numbers or range(1, len(BREAKS) + 1)
    for number in numbers:  # all of the list, before anything takes time
        broken((package / BREAKS[number - 1][0]).read_text(encoding="utf-8"), number)
    with tempfile.TemporaryDirectory() as made:
        copied(given.at.resolve(), Path(made))
        for number in numbers:
            file, *_, tests = BREAKS[number - 1]
            path, began = Path(made, "nanogpt", file), time.monotonic()
            whole = path.read_text(encoding="utf-8")
            path.write_text(broken(whole, number), encoding="utf-8")
            file_of, _, test = tests.partition("::")
            by = "" if given.tests else seen(Path(made), [f"tests/{file_of}.py::{test}"])
            by = by or seen(Path(made), [f"tests/{x}.py" for x in given.tests or [file_of]])
            path.write_text(whole, encoding="utf-8")
            missed += not by
            seconds = time.monotonic() - began
            print(f"{number:2} {file:22} {by or 'NOT SEEN'}  {seconds:.0f} s", flush=True)
    print(f"{len(numbers) - missed} of {len(numbers)} were seen")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
