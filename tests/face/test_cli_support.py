"""`qbpass support`: what is answered, how it is written down, and a third party's backend that is installed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from support_models import attention, group_query, kernel_table, saved, tensor_scatter

from qbpass.admission.backends.docs import EXAMPLE_ENTRY_POINT, EXAMPLE_FILE
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle

Run = Callable[..., Any]  # the fixture qbpass_run: code, out and err of one command

TANH = "|Tanh|*in* input:**T**<br> *out* output:**T**|13+|**T** = tensor(float)|"
GQA = (
    "|GroupQueryAttention|*in* query:**T**<br> *in* key:**T**<br> *in* value:**T**<br> *in* past_key:**T**<br> *in* "
    "past_value:**T**<br> *out* output:**T**|1+|**T** = tensor(bfloat16), tensor(float16)|"
)
ATTENTION = (
    "|Attention|*in* Q:**T1**<br> *in* K:**T1**<br> *in* V:**T2**<br> *out* Y:**T1**|23+|**T1** = tensor(float)|"
)


def told(run: Run, *arguments: object, code: int) -> dict[str, Any]:
    """The document that --json - writes; nothing else may be on stdout."""
    answer = run("support", *arguments, "--json", "-")
    assert answer.code == code, answer
    found: dict[str, Any] = json.loads(answer.out)
    return found


def table_file(folder: Path, release: str, *rows: str) -> Path:
    path = folder / f"OperatorKernels-{release}.md"
    path.write_text(kernel_table(CUDA={"ai.onnx": "\n".join(rows), "com.microsoft": GQA}), encoding="utf-8")
    return path


def test_what_the_running_cpu_wheel_runs_is_unknown(qbpass_run: Run, tiny_eager: Path) -> None:
    found = told(qbpass_run, tiny_eager, "--backend", "ort-cpu", code=0)
    assert found["verdict"] == "unknown"
    assert found["version"] == ort.__version__
    assert "kernels registered in the running onnxruntime" in found["kernels"]
    assert {"rule": "ort-kernel-registration", "versions": ort.__version__} in found["rules_asked"]
    assert {answer["verdict"] for answer in found["answers"]} == {"unknown"}
    assert all(answer["rule"] is None and answer["evidence"] == {} for answer in found["answers"])
    sites = {answer["site"] for answer in found["answers"]}
    assert sites == {None, *(f"attention.{layer}" for layer in range(found["attentions"]["found"]))}
    emitted = [a for a in found["answers"] if a["descriptor"]["part"] == "qb" and a["site"] is not None]
    assert {"com.microsoft::FusedMatMul", "ScatterND", "If"} <= {answer["operator"] for answer in emitted}
    assert {answer["descriptor"]["queries"] for answer in emitted} == {4}


def test_the_document_has_the_promised_form(qbpass_run: Run, tmp_path: Path) -> None:
    model = saved(group_query(), tmp_path)
    table = table_file(tmp_path, "1.30.0", TANH)
    found = told(qbpass_run, model, "--backend", "ort-cuda", "--kernel-table", table, code=1)
    assert (found["schema_version"], found["backend"], found["verdict"]) == (1, "ort-cuda", "false")
    (answer,) = found["answers"]
    assert {"site", "operator", "verdict", "rule", "versions", "evidence"} <= set(answer)
    assert answer["operator"] == "com.microsoft::GroupQueryAttention"
    assert (answer["verdict"], answer["rule"], answer["versions"]) == ("false", "ort-kernel-registration", "1.30.0")
    lines = table.read_text(encoding="utf-8").splitlines()
    assert [lines[row["line"] - 1] for row in answer["evidence"]["rows"]] == [GQA]


@pytest.mark.parametrize(
    ("model", "rows", "code"),
    [
        (attention(), [TANH], 1),
        (attention(), [ATTENTION, TANH], 0),
        (tensor_scatter(), [ATTENTION, TANH], 1),
        (group_query(), [ATTENTION, TANH], 1),
    ],
    ids=["no Attention", "Attention", "no TensorScatter", "float32 GroupQueryAttention"],
)
def test_a_graph_that_is_no_decoder_is_answered_too(
    qbpass_run: Run, tmp_path: Path, model: onnx.ModelProto, rows: list[str], code: int
) -> None:
    path = saved(model, tmp_path)
    answer = qbpass_run("support", path, "--backend", "cuda", "--kernel-table", table_file(tmp_path, "1.25.0", *rows))
    assert answer.code == code
    operator = model.graph.node[0].op_type
    assert answer.out.splitlines()[-1].startswith(f"ort-cuda, onnxruntime 1.25.0: {'false' if code else 'unknown'}; ")
    if code:
        assert f"OperatorKernels-1.25.0.md:{9 + len(rows) - 1}: " in answer.out or operator == "GroupQueryAttention"
        assert "ort-kernel-registration" in answer.out


def test_queries_on_the_fourth_axis_are_refuted_from_two_on(qbpass_run: Run, tiny_eager: Path) -> None:
    one = told(qbpass_run, tiny_eager, "--backend", "ggml-vulkan", "--queries", "1", "--as-exported", code=0)
    two = told(qbpass_run, tiny_eager, "--backend", "ggml-vulkan", "--queries", "2", "--as-exported", code=1)
    assert len(one["answers"]) == len(two["answers"]) == 2 * two["attentions"]["found"]
    assert {answer["rule"] for answer in two["answers"]} == {"ggml-vulkan-fourth-extents"}
    assert [answer["evidence"]["fourth_extents"] for answer in two["answers"][:2]] == [[1, 2], [1, 2]]


def test_another_version_than_the_rules_were_read_in_is_unknown_and_says_so(qbpass_run: Run, tiny_eager: Path) -> None:
    found = told(qbpass_run, tiny_eager, "--backend", "ggml-vulkan", "--version", "99.1", "--as-exported", code=0)
    assert found["rules_not_asked"] == [{"rule": "ggml-vulkan-fourth-extents", "versions": "0.9.8 to 0.25.3"}]
    answer = qbpass_run("support", tiny_eager, "--backend", "ggml-vulkan", "--version", "99.1", "--as-exported")
    assert "not asked about ggml 99.1: ggml-vulkan-fourth-extents (0.9.8 to 0.25.3)" in answer.out


def test_a_version_that_nobody_named_is_said_to_be_the_rules_own(qbpass_run: Run, tiny_eager: Path) -> None:
    found = told(qbpass_run, tiny_eager, "--backend", "ort-qnn", "--as-exported", code=1)
    assert found["version"] == "2.7.0"
    assert found["version_from"] == "the newest that its rules were read in"
    assert any("name yours with --version" in line for line in found["notes"])


def test_a_provider_that_no_wheel_here_has_is_not_asked_of_its_kernels(qbpass_run: Run, tiny_eager: Path) -> None:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this wheel has the CUDA provider")
    found = told(qbpass_run, tiny_eager, "--backend", "ort-cuda", "--as-exported", code=0)
    assert "ort-kernel-registration" in {entry["rule"] for entry in found["rules_not_asked"]}
    assert any("--kernel-table" in line for line in found["notes"])


def test_a_guard_is_refuted_under_cuda_graphs_and_straight_line_graphs_are_not(
    qbpass_run: Run, tiny_eager: Path
) -> None:
    asked = (tiny_eager, "--backend", "ort-cuda-graphs", "--as-exported")
    guarded = told(qbpass_run, *asked, code=1)
    assert {answer["operator"] for answer in guarded["answers"] if answer["verdict"] == "false"} == {"If"}
    told(qbpass_run, *asked, "--emit", "specialized", code=0)


def test_a_bundles_own_graph_is_asked_about(qbpass_run: Run, tiny_bundle: Bundle, tmp_path: Path) -> None:
    found = told(qbpass_run, tiny_bundle.folder, "--backend", "cuda-graphs", code=1)
    assert (found["graph"], found["files"], found["queries"]) == ("bundle", ["decoder.onnx"], 4)
    asked = sum(answer["descriptor"]["nodes"] for answer in found["answers"])
    assert asked >= len(onnx.load(tiny_bundle.folder / "decoder.onnx", load_external_data=False).graph.node)
    assert {answer["site"] for answer in found["answers"] if answer["verdict"] == "false"} == {
        f"attention.{layer}" for layer in range(found["attentions"]["found"])
    }
    straight = write_bundle(tiny_bundle.reference, tmp_path / "b", "qb", SessionSpec(threads=2), emit="specialized")[0]
    both = told(qbpass_run, straight.folder, "--backend", "cuda-graphs", code=0)
    assert both["files"] == ["decoder.active.onnx", "decoder.native.onnx"]


def test_weights_need_not_exist_where_the_files_own_graph_is_asked_about(
    qbpass_run: Run, mistake: Callable[..., str], tiny_eager: Path, tmp_path: Path
) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes((tiny_eager / "model.onnx").read_bytes())
    assert qbpass_run("support", graph, "--backend", "coreml", "--as-exported").code == 1
    assert "model.onnx.data" in mistake("support", graph, "--backend", "coreml")


def test_refutations_are_grouped_for_people_and_each_has_a_row_with_all(qbpass_run: Run, tiny_eager: Path) -> None:
    brief = qbpass_run("support", tiny_eager, "--backend", "qnn", "--as-exported").out.splitlines()
    whole = qbpass_run("support", tiny_eager, "--backend", "qnn", "--as-exported", "--all").out.splitlines()
    assert len([line for line in brief if "ort-qnn-dynamic-shape" in line]) == 1
    assert len(whole) > 100
    assert brief[-1] == whole[-1]
    assert any("unknown" in line for line in whole[:-1])


def test_names_from_a_strangers_file_reach_no_terminal_as_they_are(qbpass_run: Run, tmp_path: Path) -> None:
    model = attention()
    model.graph.node[0].op_type = "Tanh\x1b[31m\u202e"
    answer = qbpass_run("support", saved(model, tmp_path), "--backend", "coreml")
    assert answer.code == 1
    assert "\x1b" not in answer.out
    assert "\u202e" not in answer.out


def test_the_backends_are_listed(qbpass_run: Run) -> None:
    listed = qbpass_run("support", "--list")
    assert listed.code == 0
    assert listed.out == qbpass_run("support", "--backend", "list").out
    names = {line.split()[0] for line in listed.out.splitlines() if line and not line.startswith(" ")}
    assert {"ort-cpu", "ort-cuda", "ort-cuda-graphs", "ort-tensorrt", "ort-openvino"} <= names
    assert {"ort-webgpu", "ort-web-jsep", "ort-coreml", "ort-qnn", "ggml-vulkan"} <= names


def test_what_can_not_be_asked_is_one_line(mistake: Callable[..., str], tmp_path: Path) -> None:
    model, table = saved(attention(), tmp_path), table_file(tmp_path, "1.25.0", TANH)
    assert "no rules for a backend 'abacus'" in mistake("support", model, "--backend", "abacus")
    assert "no --backend is given" in mistake("support", model)
    assert "no MODEL is given" in mistake("support", "--backend", "cpu")
    assert "does not exist" in mistake("support", tmp_path / "nothing.onnx", "--backend", "cpu")
    assert "--version soon is no release" in mistake("support", model, "--backend", "cpu", "--version", "soon")
    assert "named for version 1.25.0" in mistake(
        "support", model, "--backend", "cuda", "--kernel-table", table, "--version", "1.24.1"
    )
    assert "leave out --kernel-table" in mistake("support", model, "--backend", "qnn", "--kernel-table", table)
    assert "is no table of registered kernels" in mistake(
        "support", model, "--backend", "cuda", "--kernel-table", __file__
    )
    assert "is not an ONNX model" in mistake("support", table, "--backend", "cpu")
    assert "choose one of guarded, specialized" in mistake("support", model, "--backend", "cpu", "--emit", "both")


def wheel(folder: Path, module: str) -> Path:
    """The documented example as a package: acme_npu.py, and its entry point in the metadata."""
    entry_points = EXAMPLE_ENTRY_POINT.replace(
        '[project.entry-points."qbpass.support_rules"]', "[qbpass.support_rules]"
    )
    files = {
        "acme_npu.py": module,
        "acme_npu-2.4.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-npu\nVersion: 2.4\n",
        "acme_npu-2.4.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "acme_npu-2.4.dist-info/entry_points.txt": entry_points.replace('"', ""),
    }
    record = io.StringIO()
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        csv.writer(record).writerow([name, f"sha256={digest}", len(text.encode())])
    files["acme_npu-2.4.dist-info/RECORD"] = record.getvalue() + "acme_npu-2.4.dist-info/RECORD,,\n"
    path = folder / "acme_npu-2.4-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def installed(folder: Path, module: str = EXAMPLE_FILE) -> Path:
    """A folder that pip installed the package into."""
    site = folder / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
    ]
    done = subprocess.run([*pip, str(wheel(folder, module))], capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        pytest.skip("this environment has no pip")
    assert done.returncode == 0, done.stderr
    return site


def with_site(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qbpass", *map(str, arguments)]
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_third_party_adds_a_backend_by_one_file_and_an_entry_point(tiny_eager: Path, tmp_path: Path) -> None:
    site = installed(tmp_path)
    asked = with_site(site, "support", tiny_eager, "--backend", "acme-npu", "--as-exported", "--json", "-")
    assert asked.returncode == 1, asked.stderr
    found = json.loads(asked.stdout)
    false = [answer for answer in found["answers"] if answer["verdict"] == "false"]
    assert {answer["rule"] for answer in false} == {"acme-npu-scatter"}
    assert {answer["operator"] for answer in false} == {"ScatterND"}
    assert false[0]["evidence"] == {"row": "| ScatterND | no |"}
    assert false[0]["versions"] == "2.0 to 2.4"
    assert false[0]["sources"] == ["acme-npu 2.0 to 2.4: docs/operators.md, row ScatterND"]
    newer = with_site(site, "support", tiny_eager, "--backend", "acme-npu", "--as-exported", "--version", "2.5")
    assert newer.returncode == 0, newer.stderr
    assert "acme-npu-scatter (2.0 to 2.4)" in newer.stdout


def test_a_broken_third_party_is_a_line_and_stops_nobody_else(tiny_eager: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(tmp_path, "raise RuntimeError('half\\nbuilt')")) as archive:
        archive.extractall(tmp_path / "site")
    asked = with_site(tmp_path / "site", "support", tiny_eager, "--backend", "acme-npu", "--as-exported")
    assert asked.returncode == 2
    assert asked.stdout == ""
    (line,) = asked.stderr.splitlines()
    assert line.startswith("qbpass: no rules for a backend 'acme-npu'")
    assert "package acme-npu) can't be used (RuntimeError: half built)" in line
    other = with_site(tmp_path / "site", "support", tiny_eager, "--backend", "ggml-vulkan", "--as-exported")
    assert other.returncode == 1
    assert "RuntimeError: half built" in other.stderr
    assert "Traceback" not in other.stderr
