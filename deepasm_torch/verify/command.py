"""`deepasm verify`: the shipped kernels in the emulator, against float64; `--planted`: the checker
itself, against generated bugs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from ..bench.progress import Progress
from ..cli import CannotRun, Outcome

BATCH = 6  # mutations a worker plants before it reports


def configure(parser) -> None:
    parser.add_argument(
        "--planted", action="store_true", help="plant generated bugs instead, and count the caught"
    )
    parser.add_argument("--all", action="store_true", help="every variant, or every planted bug")
    parser.add_argument(
        "-k", metavar="TEXT", default="", dest="pattern",
        help="only variants, or planted bugs, whose description contains this",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of samples, data and schedules")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: processors)")
    parser.add_argument(
        "--count", type=int, default=0, help="with --planted: how many bugs (default 400)"
    )


def execute(args) -> Outcome:
    try:
        from . import pool
    except ImportError as error:
        raise CannotRun(f"verify: {error}") from error
    try:
        import jinja2  # noqa: F401 - renders the kernels
        import numpy  # noqa: F401 - runs them
    except ImportError as error:
        raise CannotRun(
            f"verify needs Jinja2 and NumPy to render and run kernels: {error}; "
            "pip install jinja2 numpy"
        ) from error
    if args.count < 0 or args.jobs < 0:
        raise CannotRun("verify: --count and --jobs cannot be negative")
    jobs = args.jobs or pool.default_jobs()
    return study(args, jobs) if args.planted else verify(args, jobs)


# ---------------------------------------------------------------------- shipped kernels
def check_variant(task) -> dict:
    """All runs of one variant."""
    from ..kernels.gemm import KERNELS
    from . import variants
    from .problem import VARIANTS, Problem

    name, seed = task
    start, failures, count = time.perf_counter(), [], 0
    for case, schedule, run_seed in variants.runs(KERNELS[VARIANTS[name]], seed):
        count += 1
        verdict = Problem(name, case, run_seed).run(schedule, run_seed)
        if not verdict.clean:
            failures.append(
                {
                    "case": str(case),
                    "schedule": schedule,
                    "seed": run_seed,
                    "kinds": verdict.kinds,
                    "wrong": verdict.wrong,
                    "hazards": [h.as_dict() for h in verdict.hazards],
                    "report": verdict.report(),
                }
            )
    seconds = time.perf_counter() - start
    return {"variant": name, "runs": count, "seconds": seconds, "failures": failures}


def verify(args, jobs) -> Outcome:
    from . import pool, variants
    from .problem import VARIANTS

    chosen = variants.selected(args.all, args.pattern, args.seed)
    if not chosen:
        raise CannotRun(f"verify: no variant's name contains {args.pattern!r}; see deepasm info")
    results = []
    with Progress(len(chosen), quiet=args.json) as bar:
        for result in pool.each(check_variant, [(k.name, args.seed) for k in chosen], jobs):
            results.append(result)
            bar.step(result["variant"])
    results.sort(key=lambda r: VARIANTS[r["variant"]])
    lines, errors = [], []
    for r in results:
        state = f"FAILED {len(r['failures'])} of" if r["failures"] else "ok"
        lines.append(f"{r['variant']:<44} {state} {r['runs']} runs  {r['seconds']:.1f} s")
        for failure in r["failures"]:
            where = f"{r['variant']} on {failure['case']}, {failure['schedule']}"
            errors.append(f"{where}, seed {failure['seed']}: {failure['report']}")
    failed = sum(bool(r["failures"]) for r in results)
    lines.append(f"verified {len(results)} variants, failed {failed}")
    return Outcome({"seed": args.seed, "variants": results}, "\n".join(lines), errors)


# ---------------------------------------------------------------------- planted bugs
def study(args, jobs) -> Outcome:
    from . import planted, pool

    found = planted.sites(args.seed, args.all, args.pattern)
    if not found:
        raise CannotRun(f"verify: no planted bug's description contains {args.pattern!r}")
    count = args.count or (len(found) if args.all else planted.DEFAULT_COUNT)
    chosen = found if args.all else planted.sample(found, count, args.seed)
    per_kernel = defaultdict(list)
    for mutation in chosen[:count]:
        per_kernel[mutation.kernel].append(mutation)
    flagged, outcomes, tasks = [], [], []
    with Progress(len(per_kernel) + min(count, len(chosen)), quiet=args.json) as bar:
        for clean in pool.each(planted.run_clean, [(n, args.seed) for n in per_kernel], jobs):
            flagged += clean.flagged
            mine = per_kernel[clean.kernel]
            tasks += [
                (mine[i : i + BATCH], clean.covered, args.seed) for i in range(0, len(mine), BATCH)
            ]
            bar.step(f"{clean.kernel}, unchanged")
        for batch in pool.each(planted.run_mutations, tasks, jobs):
            outcomes += batch
            for outcome in batch:
                bar.step(f"{outcome.verdict}: {outcome.mutation}")
    return _summary(outcomes, flagged, args.seed, len(per_kernel))


def _summary(outcomes, flagged, seed, kernels) -> Outcome:
    from .planted import BAR

    outcomes.sort(key=lambda o: (o.verdict, o.mutation.family, str(o.mutation)))
    verdicts = Counter(o.verdict for o in outcomes)
    caught, equivalent = verdicts["caught"], verdicts["equivalent"]
    bugs = len(outcomes) - equivalent
    lines = [f"{o.verdict}: {o.mutation}: {o.how}" for o in outcomes if o.verdict != "caught"]
    families = defaultdict(Counter)
    for o in outcomes:
        families[o.mutation.family][o.verdict] += 1
    lines += [f"{'site':<18} planted  caught  equivalent  missed"]
    for family, n in sorted(families.items()):
        missed = n["missed"] + n["unreached"]
        lines.append(
            f"{family:<18} {sum(n.values()):7}  {n['caught']:6}  {n['equivalent']:10}  {missed:6}"
        )
    refuted = [o for o in outcomes if o.refuted]
    errors = [f"a clean kernel was flagged: {text}" for text in flagged]
    errors += [f"the table says {o.mutation} is equivalent, but: {o.how}" for o in refuted]
    if caught < BAR * bugs:
        errors.append(f"{caught} of {bugs} bugs were caught, {BAR:.0%} are required")
    lines.append(
        f"{kernels} kernels; {equivalent} mutations are no bugs, by an argument of the table; "
        f"{bugs - caught} bugs missed"
    )
    lines.append(f"planted {len(outcomes)} caught {caught}, clean kernels flagged {len(flagged)}")
    data = {
        "seed": seed,
        "planted": len(outcomes),
        "caught": caught,
        "equivalent": equivalent,
        "missed": bugs - caught,
        "clean_flagged": flagged,
        "mutations": [_record(o) for o in outcomes],
    }
    return Outcome(data, "\n".join(lines), errors)


def _record(outcome) -> dict:
    m = outcome.mutation
    return {
        "kernel": m.kernel,
        "line": m.line,
        "where": m.where,
        "site": m.family,
        "change": m.change,
        "statement": m.statement,
        "verdict": outcome.verdict,
        "how": outcome.how,
        "runs": outcome.runs,
    }
