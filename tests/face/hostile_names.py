"""An export whose every tensor has a name that would run, forge or hide something where it is not escaped."""

from __future__ import annotations

from pathlib import Path

import onnx

#: Markup, attributes, templates, comments, entities, a terminal's escape, text turned around, a line's end.
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '" onload="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "--><svg/onload=alert(1)>",
    "]]>&lt;b&gt;&amp;",
    "\x1b[31mred\x1b[0m\x07",
    "\u202etxet",
    "a\nb\rc",
    "</title><style>*{display:none}</style>",
)


def rename_everything(folder: Path) -> list[str]:
    """Rename every tensor of folder/model.onnx; the graph stays what it is. Returns the new names."""
    path = folder / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    known: dict[str, str] = {}

    def renamed(name: str) -> str:
        return known.setdefault(name, f"{HOSTILE[len(known) % len(HOSTILE)]}{len(known)}") if name else ""

    for node in graph.node:
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
        node.name = renamed(f"node {node.name}")
    for entry in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        entry.name = renamed(entry.name)
    onnx.save(model, path)
    return list(known.values())
