"""The command line of `kubectl vramcast`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from vramcast import __version__
from vramcast.kubectl.api_server import ApiServer
from vramcast.kubectl.errors import Outdated, Trouble
from vramcast.kubectl.service_view import DEFAULT, ServiceView, find_service, outdated
from vramcast.kubectl.views import show_accuracy, show_forecast, show_runs, show_top
from vramcast.kubectl.why import explain

COMMANDS = {
    "why": ("why a pod waits, node by node, and what would have to change", "why resnet50-x1 -n ml"),
    "top": ("GPUs: what is promised, used and free", "top -o wide"),
    "runs": ("pods that have ended: what was promised and what they took", "runs -A"),
    "accuracy": ("how good the forecasts were", "accuracy"),
    "forecast": ("what a manifest would need on this cluster's GPUs", "forecast -f pod.yaml"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    given = plugin_parser().parse_args(arguments)
    try:
        with ApiServer(_kubectl_options(given)) as api:
            _run(given, api)
    except Trouble as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # or Python would report the broken pipe again
        sys.exit(130)


def _run(given: argparse.Namespace, api: ApiServer) -> None:
    view = ServiceView(api, find_service(api, given.service))
    try:
        if given.command == "why":
            explain(api, view, given.namespace or api.current_namespace(), given.pod, given.output)
        elif given.command == "top":
            show_top(view, given.node, given.output)
        elif given.command == "runs":
            namespace = None if given.all_namespaces else given.namespace or api.current_namespace()
            show_runs(view, namespace, given.output, given.limit)
        elif given.command == "accuracy":
            show_accuracy(view, given.output)
        else:
            show_forecast(view, given.file, given.output)
    except Outdated as error:
        raise outdated(error, view) from None
    except (KeyError, TypeError, AttributeError) as error:
        # The tables take an answer apart without asking first whether it has every field.
        raise outdated(LookupError(f"unexpected answer ({error!r})"), view) from None


def _kubectl_options(given: argparse.Namespace) -> list[str]:
    names = {"context": "--context", "kubeconfig": "--kubeconfig", "impersonate": "--as"}
    return [f"{option}={value}" for name, option in names.items() if (value := getattr(given, name))]


def plugin_parser() -> argparse.ArgumentParser:
    examples = "\n".join(f"  kubectl vramcast {example}" for _, example in COMMANDS.values())
    parser = argparse.ArgumentParser(
        prog="kubectl vramcast",
        description="Ask vramcast, through the API server and with your own rights.",
        epilog=f"examples:\n{examples}\n\n'kubectl vramcast COMMAND --help' lists the options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (text, example) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=f"example: kubectl vramcast {example}"
        )
        _add_arguments(command, name)
    return parser


def _add_arguments(command: argparse.ArgumentParser, name: str) -> None:
    if name == "why":
        command.add_argument("pod", metavar="POD")
    if name == "top":
        command.add_argument("node", metavar="NODE", nargs="?", default="", help="only nodes with this in their name")
    if name in ("why", "runs"):
        command.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    if name == "runs":
        command.add_argument("-A", "--all-namespaces", action="store_true")
        command.add_argument("--limit", type=int, default=50, metavar="N", help="so many runs, the newest first")
    if name == "forecast":
        command.add_argument("-f", "--file", metavar="FILE", required=True, help="a manifest; - is standard input")
    command.add_argument("-o", "--output", choices=("table", "wide", "json"), default="table")
    command.add_argument("--service", metavar="NAMESPACE/NAME", help=f"if it is not found; usually {DEFAULT}")
    command.add_argument("--context", help="as for kubectl")
    command.add_argument("--kubeconfig", metavar="FILE", help="as for kubectl")
    command.add_argument("--as", dest="impersonate", metavar="USER", help="as for kubectl")
