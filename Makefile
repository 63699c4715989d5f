# Needs Python 3.11 or later and make; everything else is installed into the virtual environments below.
#   make demo        export, admit, rewrite, generate and qualify SmolLM2-135M-Instruct
#   make test        the tests, those on the real model too
#   make test-all    and the slow ones: every family by every exporter
#   make lint        ruff and mypy
#   make wheel-test  the house's tests against an installed wheel
PYTHON ?= python3
# --no-compile: what is never imported need not be compiled, and torch has much of that.
PIP = -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

VENV = .venv
LINT_VENV = .venv-lint
WHEEL_VENV = .venv-wheel
EXTRAS = cpu,export,grammar,serve,dev,genai

.PHONY: demo test test-all lint wheel-test clean

demo: $(VENV)/.stamp
	$(VENV)/bin/python -m qbpass.demo demo-out

test: $(VENV)/.stamp
	$(VENV)/bin/python -m pytest

test-all: $(VENV)/.stamp
	$(VENV)/bin/python -m pytest -m ""

$(VENV)/.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qbpass needs Python 3.11 or later: make PYTHON=python3.12")'
	@echo "making $(VENV) (minutes the first time: torch is large)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python $(PIP) -e '.[$(EXTRAS)]'
	@touch $@

# mypy can't see packages that setuptools maps through an import hook, as an ordinary editable install does. A strict
# editable install is a tree of links, which it can see, but files made later are not in it: so linting has its own
# environment, installed again each time (seconds), and development keeps the ordinary one. mypy runs in another folder,
# or it would take the checkout's qbpass/ for the whole package.
lint: $(LINT_VENV)/.stamp
	@$(LINT_VENV)/bin/python $(PIP) --no-deps --no-build-isolation -e . --config-settings editable_mode=strict
	$(LINT_VENV)/bin/ruff check .
	$(LINT_VENV)/bin/ruff format --check .
	cd $(LINT_VENV) && bin/python -m mypy --config-file ../pyproject.toml

$(LINT_VENV)/.stamp: pyproject.toml constraints.txt
	@echo "making $(LINT_VENV)"
	@$(PYTHON) -m venv $(LINT_VENV)
	@$(LINT_VENV)/bin/python $(PIP) 'setuptools>=77' ruff mypy numpy onnx pydantic typer rich jinja2 starlette uvicorn prometheus_client
	@touch $@

# Run from another folder and with the checkout off the path, so that what is imported is the wheel.
wheel-test:
	@echo "building the wheel and installing it into $(WHEEL_VENV)"
	@rm -rf $(WHEEL_VENV) build/lib build/bdist.* dist
	@$(PYTHON) -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/python $(PIP) build
	@$(WHEEL_VENV)/bin/python -m build --wheel --outdir dist . >/dev/null
	@$(WHEEL_VENV)/bin/python $(PIP) pytest hypothesis "$$(ls dist/qbpass-*.whl)[cpu]"
	cd $(WHEEL_VENV) && QBPASS_EXPECT_WHEEL=1 bin/python -P -m pytest -p no:cacheprovider --rootdir .. ../tests/test_house.py

clean:
	rm -rf $(VENV) $(LINT_VENV) $(WHEEL_VENV) build dist demo-out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
