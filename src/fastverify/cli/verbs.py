"""The list of verbs. Each imports torch only inside, so that a missing optional package breaks only what needs it."""

import typer

from fastverify.cli import bench, demo, env_vars, generate, plan, report, serve, status, train, tune


def add_verbs(app: typer.Typer) -> None:
    """Attach every verb to the root command, in the order of use."""
    app.command("demo")(demo.demo)
    app.command("plan")(plan.plan)
    app.command("tune")(tune.tune)
    app.command("status")(status.status)
    app.command("report")(report.report)
    app.add_typer(bench.app, name="bench")
    app.command("generate")(generate.generate)
    app.command("serve")(serve.serve)
    app.add_typer(train.app, name="train")
    app.command("env-vars")(env_vars.print_env_vars)
