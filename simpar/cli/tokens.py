"""``simpar tokenize`` and ``simpar data``: text to tokens once, and how long documents are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out

Sources = Annotated[
    list[str], typer.Argument(help="Files, or folders of text, JSON lines, parquet, or a dataset", metavar="TEXT")
]
SkipEmpty = Annotated[
    bool, typer.Option("--skip-empty", help="Leave out and count documents that are empty or have no token in the loss")
]
Tokenizer = Annotated[str, typer.Option("--tokenizer", help="Folder of a tokenizer, a tokenizer.json, or bytes")]


@app.command(epilog="Example: simpar tokenize texts --tokenizer Llama-3.1-8B -o tokens --validation 0.01")
def tokenize(
    text: Sources,
    tokenizer: Tokenizer,
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the tokens, as --tokens of run takes it")],
    validation: Annotated[float, typer.Option("--validation", help="Share of the documents to hold out")] = 0.0,
    loss_on: Annotated[str, typer.Option("--loss-on", help="completions alone, or all tokens")] = "completions",
    skip_empty: SkipEmpty = False,
) -> int:
    """Write the tokens of texts, once for all runs."""
    from simpar.errors import UserError
    from simpar.runtime.documents import count_unread
    from simpar.runtime.rows import tell_counts
    from simpar.runtime.tokenize import VALIDATION, TokenizeOptions, TokenManifest, tokenize

    if loss_on not in (allowed := ("completions", "all")):
        raise UserError(f"--loss-on {loss_on}: allowed: {', '.join(allowed)}")
    options = TokenizeOptions(validation, all_counted=loss_on == "all", skips=skip_empty)
    done = tokenize(text, tokenizer, Path(output), options)
    console().print(f"{_said(done)}; wrote {output}", soft_wrap=True)
    if validation:
        held_out = TokenManifest.load(Path(output) / VALIDATION)
        console().print(f"held out: {_said(held_out)}", soft_wrap=True)
    if done.left_out:
        named = " (files and splits are read if they are named)" if count_unread(text) else ""
        console().print(f"left out: {tell_counts(done.left_out)}{named}", soft_wrap=True)
    return 0


def _said(done: Any) -> str:
    from simpar.units import number_of

    return f"{number_of(done.documents, 'document')}, {done.tokens:,} tokens"


@app.command(epilog="Example: simpar data tokens > documents.yaml")
def data(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of simpar tokenize, PREFIX of .bin and .idx, or text with --tokenizer", metavar="TOKENS"
        ),
    ],
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Of text: folder of a tokenizer, a tokenizer.json, or bytes")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", help="Tokens per sequence: what is cut and padded", min=1)
    ] = None,
    pack: Annotated[bool, typer.Option("--pack/--no-pack", help="As in simpar run")] = True,
    skip_empty: SkipEmpty = False,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> int:
    """Print how long documents are, and what is left out."""
    from simpar.errors import UserError
    from simpar.runtime.lengths import measure_lengths

    if skip_empty and tokenizer is None:
        raise UserError("--skip-empty: nothing reads it; allowed: with --tokenizer, of text")
    result = measure_lengths(Path(source), seq_len, packed=pack, tokenizer=tokenizer, skips=skip_empty)
    if not json_out(result, json_):
        for line in result["histogram"]:
            console().print(f"# {line}", soft_wrap=True, highlight=False)
        lengths = ", ".join(map(str, result["documents"]["lengths"]))
        packing = result["documents"]["packing"]
        said = f"training:\n  documents:\n    lengths: [{lengths}]\n    packing: {packing}"
        console().print(said, soft_wrap=True, highlight=False)
    return 0
