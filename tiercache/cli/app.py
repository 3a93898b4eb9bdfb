"""The commands: each reads its arguments and hands over to the module that does it, imported only then."""

from __future__ import annotations

from typing import Annotated

import typer

from tiercache.cli.options import (
    AsJson,
    CacheDir,
    ClientOption,
    ConfigFile,
    Deadline,
    OriginOptions,
    ProfileOption,
    Settings,
    configuration,
    deadline_s,
    level_word,
    one_of,
)
from tiercache.model import Keep

DRIVERS = ("auto", "kernel", "pyfuse3")

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at the configuration.", rich_markup_mode=None)
app.add_typer(config_app, name="config")

Url = Annotated[
    str, typer.Argument(help="s3://bucket/prefix, another URL, a directory, or tiercache://NAME.", metavar="URL")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A tiered cache for training data and checkpoints: mount a bucket, or open it through fsspec."""


@app.command()
def mount(
    url: Url,
    mountpoint: Annotated[str, typer.Argument(help="An existing directory.", metavar="MOUNTPOINT")],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    profile: ProfileOption = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    foreground: Annotated[bool, typer.Option("--foreground", "-f", help="Stay; unmount on SIGINT or SIGTERM.")] = False,
    client: ClientOption = None,
    option: OriginOptions = None,
    ack: Annotated[
        str | None, typer.Option(help="What fsync waits for: memory, local or origin.", metavar="LEVEL")
    ] = None,
    sync_on_close: Annotated[
        bool | None, typer.Option("--sync-on-close/--no-sync-on-close", help="Whether close waits for it too.")
    ] = None,
    driver: Annotated[str, typer.Option(help="auto, kernel or pyfuse3.", metavar="NAME")] = "",
    deadline: Deadline = "60s",
) -> None:
    """Mount a bucket or a directory. Starts the engine of the cache directory if none runs."""
    from tiercache.cli.deadline import bounded
    from tiercache.cli.link import starting
    from tiercache.cli.mount import ending_signals, leave, stay
    from tiercache.cli.mount import mount as do_mount
    from tiercache.cli.origin import choose_origin

    wait_s = deadline_s(deadline)
    if ack is not None:
        level_word("--ack", ack)
    if driver:
        one_of("--driver", driver, DRIVERS)
    settled = configuration(cache_dir, config, settings)
    origin = choose_origin(settled, url, client=client, options=option, profile=profile)
    engine = starting(settled, settings)
    try:
        made = do_mount(
            engine, origin, mountpoint, read_only=read_only, driver=driver, ack=ack, sync_on_close=sync_on_close
        )
    except BaseException:
        engine.stop_unused()
        raise
    how = ", read-only" if made["read_only"] else ""
    if ack is not None or sync_on_close is not None:
        how += f", {'fsync and close wait' if made['sync_on_close'] else 'fsync waits'} for {made['ack']}"
    told = f"{made['url']} is mounted at {made['mountpoint']} (profile {made['profile']}{how})"
    if not foreground:
        print(told)
        return
    with ending_signals() as wakeup:  # before anybody is told that there is something to end
        print(told, flush=True)
        signalled = stay(wakeup, made["mountpoint"])
    with bounded(wait_s):
        leave(engine, made["mountpoint"], wait_s, signalled=signalled)


@app.command()
def umount(
    mountpoint: Annotated[str, typer.Argument(help="Where it is mounted.", metavar="MOUNTPOINT")],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    deadline: Deadline = "60s",
    lazy: Annotated[bool, typer.Option("--lazy", help="Take it away even while files in it are open.")] = False,
) -> None:
    """Unmount and bring what was written to the origin. Exit status 3: some of it is still only in the journal."""
    from tiercache.cli.deadline import bounded
    from tiercache.cli.unmount import unmount

    wait_s = deadline_s(deadline)
    with bounded(wait_s):
        unmount(configuration(cache_dir, config, None), mountpoint, wait_s, lazy=lazy)


@app.command()
def status(
    path: Annotated[str | None, typer.Argument(help="A path under a mount, or a URL.", metavar="PATH")] = None,
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the engine, its tiers, mounts and dirty files; with PATH, what that file has reached."""
    from tiercache.cli.link import attach_existing
    from tiercache.cli.place import place_of

    settled = configuration(cache_dir, config, None)
    answer = attach_existing(settled).status() if path is None else place_of(settled, path).request("status_path")
    from tiercache.cli.status import print_engine, print_json, print_path

    if as_json:
        print_json(answer)
    elif path is None:
        print_engine(answer)
    else:
        print_path(answer)


@app.command()
def why(
    path: Annotated[str, typer.Argument(help="A file under a mount, or its URL.", metavar="PATH")],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Tell which tiers have a file, why it was let in or not, what evicted it, and what plans read it next."""
    from tiercache.cli.place import place_of

    answer = place_of(configuration(cache_dir, config, None), path).request("why_path")
    from tiercache.cli.status import print_json
    from tiercache.cli.why import print_why

    (print_json if as_json else print_why)(answer)


@app.command()
def checkpoints(
    directory: Annotated[str, typer.Argument(help="A directory under a mount, or a URL.", metavar="DIR")],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints in a directory, the latest first: which are complete, and how far the others have come."""
    from tiercache.cli.checkpoints import show
    from tiercache.cli.place import place_of

    found = place_of(configuration(cache_dir, config, None), directory).request("checkpoints_path")
    show(directory, found, as_json=as_json)


@app.command()
def resolve(
    path: Annotated[str, typer.Argument(help="A file under a mount, or its URL.", metavar="PATH")],
    keep: Annotated[
        Keep, typer.Option(help="ours: over the origin's; theirs: ours are given up; both: ours beside it.")
    ],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
) -> None:
    """End the conflict of a file that others changed at the origin meanwhile, or give up a lost one."""
    from tiercache.cli.place import place_of

    kept = place_of(configuration(cache_dir, config, None), path).request("resolve", keep=keep)
    print(f"{path}: {f'our bytes go to {kept}' if kept else 'the origin has its own, ours are given up'}")


@app.command()
def drain(
    paths: Annotated[list[str] | None, typer.Argument(help="Paths under mounts, or URLs.", metavar="PATH")] = None,
    level: Annotated[str, typer.Option(help="memory, local or origin.", metavar="LEVEL")] = "origin",
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    deadline: Deadline = "60s",
) -> None:
    """Wait until what was written, or what of it lies in PATH, is in the origin, or has reached LEVEL. Exit status 0
    only then; 3 when some has not at the deadline."""
    from tiercache.cli.deadline import bounded
    from tiercache.cli.drain import drain as do_drain
    from tiercache.cli.drain import drain_paths
    from tiercache.cli.link import attach_or_recover

    wait_s = deadline_s(deadline)
    level_word("--level", level)
    settled = configuration(cache_dir, config, settings)
    with bounded(wait_s):
        if paths or level != "origin":
            drain_paths(settled, settings, paths or [], level, wait_s)
        else:
            do_drain(attach_or_recover(settled, settings), wait_s)


@app.command("export-staged")
def export_staged(
    directory: Annotated[str, typer.Argument(help="A cache directory, or a copy of one.", metavar="CACHE_DIR")],
    target: Annotated[str, typer.Argument(help="A new or empty directory.", metavar="TARGET")],
    as_json: AsJson = False,
) -> None:
    """Copy written bytes that the origin does not have out of the cache directory of a dead engine or node. Reads only,
    and asks no origin. Exit status 3: some of them are not whole."""
    from tiercache.cli.export_staged import export

    export(directory, target, as_json=as_json)


@app.command()
def warmup(
    url: Url,
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    check: Annotated[bool, typer.Option("--check", help="Fetch nothing; verify what is there.")] = False,
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest", help="Only what this .jsonl, .csv, .tsv or .parquet names; also a URL.", metavar="FILE"
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option("--column", help="Where it has the names; dotted: sample.image.", metavar="NAME"),
    ] = None,
    profile: ProfileOption = None,
    client: ClientOption = None,
    option: OriginOptions = None,
) -> None:
    """Fetch everything under a URL into the cache, or what of it a manifest names."""
    from tiercache.cli.failure import WrongUsage
    from tiercache.cli.link import starting
    from tiercache.cli.origin import choose_origin
    from tiercache.cli.warmup import warmup as do_warmup
    from tiercache.cli.warmup import warmup_listed

    if (manifest is None) != (column is None):
        raise WrongUsage("--manifest FILE and --column NAME go together")
    settled = configuration(cache_dir, config, settings)
    origin = choose_origin(settled, url, client=client, options=option, profile=profile)
    if manifest is None or column is None:
        do_warmup(starting(settled, settings), origin, check=check)
    else:
        warmup_listed(starting(settled, settings), origin, manifest, column, check=check)


@app.command()
def pin(
    path: Annotated[str, typer.Argument(help="A path under a mount, or a URL.", metavar="PATH")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="A directory, with all below it.")] = False,
    warm: Annotated[bool, typer.Option("--warm", help="Fetch what is not here.")] = False,
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
) -> None:
    """Keep a file, or all of a directory, from being evicted, also its later versions, until unpin."""
    from tiercache.cli.pins import pin as do_pin
    from tiercache.cli.place import place_of

    do_pin(place_of(configuration(cache_dir, config, None), path), recursive=recursive, warm=warm)


@app.command()
def unpin(
    path: Annotated[str, typer.Argument(help="What was pinned.", metavar="PATH")],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
) -> None:
    """Let what was pinned be evicted again."""
    from tiercache.cli.place import place_of

    place_of(configuration(cache_dir, config, None), path).request("unpin")
    print(f"{path}: is not pinned any more")


@app.command()
def pins(cache_dir: CacheDir = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List what is pinned, and how much of it is here."""
    from tiercache.cli.link import attach_existing
    from tiercache.cli.pins import show

    show(attach_existing(configuration(cache_dir, config, None)).request("pins"), as_json=as_json)


@app.command()
def plan(
    file: Annotated[str, typer.Argument(help="One path a line; - reads them from standard input.", metavar="FILE")],
    directory: Annotated[
        str, typer.Option("--directory", "-C", help="Where relative paths begin.", metavar="DIR")
    ] = ".",
) -> None:
    """Say in which order files under a mount will be read: they are fetched just before. Returns at once."""
    from tiercache.cli.plan import plan as do_plan

    do_plan(file, directory)


@app.command()
def trace(
    action: Annotated[str, typer.Argument(help="start or stop.", metavar="start|stop")],
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
) -> None:
    """Begin or end to record which versions are read, for advise. Counts until the engine ends; see trace.on."""
    from tiercache.cli.link import attach_existing

    one_of("start or stop", action, ("start", "stop"))
    path = attach_existing(configuration(cache_dir, config, None)).request("trace", on=action == "start")
    print(f"reads are recorded in {path}" if action == "start" else f"what was read is in {path}")


@app.command()
def advise(
    trace: Annotated[
        str | None, typer.Argument(help="A file of lines key,size; default: what the engine recorded.", metavar="TRACE")
    ] = None,
    add: Annotated[str, typer.Option(help="More capacity to look at.", metavar="SIZE")] = "500GiB",
    capacity: Annotated[
        str, typer.Option(help="Of the cache now; default: that of the engine that recorded.", metavar="SIZE")
    ] = "",
    policy: Annotated[
        str, typer.Option(help="Of the cache now; default: that of the engine that recorded.", metavar="NAME")
    ] = "",
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say from a recorded trace of reads what more capacity, another policy, a plan or admission would give."""
    from tiercache.cli.advise import show

    settled = configuration(cache_dir, config, None)
    show(settled, trace, capacity=capacity, policy=policy, added=add, as_json=as_json)


@app.command()
def stop(
    cache_dir: CacheDir = None,
    config: ConfigFile = None,
    deadline: Deadline = "60s",
) -> None:
    """Drain, unmount everything and end the engine. Exit status 3: some bytes are only in the journal."""
    from tiercache.cli.deadline import bounded
    from tiercache.cli.stop import stop as do_stop

    wait_s = deadline_s(deadline)
    with bounded(wait_s):
        do_stop(configuration(cache_dir, config, None), wait_s)


@app.command()
def restart(cache_dir: CacheDir = None, config: ConfigFile = None) -> None:
    """Replace the engine by the code that is installed now. Mounts and open files stay: programs only see a pause."""
    from tiercache.cli.restart import restart as do_restart

    do_restart(configuration(cache_dir, config, None))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Measure: smallfiles, largefile, checkpoint, metadata, mount, all, or policies; see tiercache bench --help."""
    from tiercache.bench.cli import main

    raise typer.Exit(main(context.args))


@app.command(hidden=True)
def engine(cache_dir: CacheDir = None, config: ConfigFile = None, settings: Settings = None) -> None:
    """Run the engine of a cache directory in the foreground, until SIGINT or SIGTERM."""
    from tiercache.cli.engine import run

    run(configuration(cache_dir, config, settings))


@config_app.command("show")
def config_show(
    cache_dir: CacheDir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print the settings in force, defaults included, secrets masked."""
    from tiercache.cli.show_config import as_toml, masked
    from tiercache.cli.status import print_json
    from tiercache.config.sources import config_file

    settled = configuration(cache_dir, config, settings)
    if as_json:
        print_json(masked(settled))
    else:
        print(as_toml(settled, config_file(config)))


@app.command()
def version() -> None:
    """Print the version."""
    from tiercache import __version__

    print(f"tiercache {__version__}")
