PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
STAMP := .venv/.installed
DOCS := .venv/.docs
OLDEST := tests/expectation/test_libraries.py tests/test_columns.py tests/cli/test_cli_commands.py tests/report/test_displays.py tests/trees/test_interpret.py

# What Python compiles is kept, whatever the shell says: a second process of a first run finds it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-full test-sealed sanitize fuzz mutants wheel-test lint bench suite reproduce intervals questions auxiliary growing \
	docs docs-test oldest clean

demo: $(DEMO)  ## train, make values missing, compare; the plot and the report land in out/
	@$(BIN)/knothole demo

test: $(STAMP) lint  ## everything CI runs
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term

test-full: $(STAMP)  ## the tier that CI leaves out: Insurance's targets, ten trials; minutes, and KNOTHOLE_DATA
	KNOTHOLE_FULL=1 $(BIN)/pytest tests/leaves/test_insurance.py tests/trust/test_errors_hold.py \
	    tests/test_check_estimator.py

test-sealed: $(STAMP)  ## all tests without HOME, in a tree that nobody may write to
	$(BIN)/python -m tools.sealed $(TESTS)

sanitize: $(STAMP)  ## kernels built with the address and undefined behaviour sanitizers, and their tests; minutes
	$(BIN)/python -m tools.sanitize $(TESTS)

fuzz: $(STAMP)  ## files changed at random, N of each format: none crashes, hangs or answers NaN
	for format in container repacked insured density circuit \
	    xgboost-json xgboost-ubj lightgbm-text catboost-json catboost-cbm; do \
	    $(BIN)/python -m tests.fuzz $$format 0 $(or $(N),20000) || exit; \
	done

mutants: $(STAMP)  ## known faults put into the source one by one: tests notice each; FAULTS chooses by name
	$(BIN)/python -m tools.mutants $(FAULTS)

wheel: $(STAMP)  ## sdist and wheel, into out/dist
	$(BIN)/python -m build --outdir out/dist

wheel-test: $(STAMP)  ## the wheel, made from the sdist and installed without extras: it works
	$(BIN)/python -m tools.wheel

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/towncrier build --draft --version next >/dev/null

bench: $(STAMP)  ## ratios against the libraries themselves, measured in one run
	$(BIN)/python -m benchmarks.speed $(SECTIONS)

suite: $(STAMP)  ## errors against all peers, a page in docs/; hours, and it goes on where it stopped
	for missing in deployment same changed; do \
	    $(BIN)/python -m benchmarks.suite -o out/suite/$$missing --missing $$missing --page docs || exit; \
	done

reproduce: $(STAMP)  ## the paper's figure and its authors' masks, a page in docs/
	$(BIN)/python -m benchmarks.paper -o docs

intervals: $(STAMP)  ## coverage and width of intervals for y, a page in docs/; it goes on where it stopped
	$(BIN)/python -m benchmarks.intervals -o docs --splits 20 --workers 2

questions: $(STAMP)  ## explanations and what to find out next, against what others published; a page in docs/, needs KNOTHOLE_DATA
	$(BIN)/python -m benchmarks.questions -o docs

auxiliary: $(STAMP)  ## what columns that the model never saw are worth, a page in docs/; it goes on where it stopped
	nice -n 19 $(BIN)/python -m benchmarks.auxiliary -o docs

growing: $(STAMP)  ## trees grown under the expected loss, a page in docs/; it goes on where it stopped
	$(BIN)/python -m benchmarks.growing -o docs --workers 2

oldest:  ## the lowest versions that pyproject.toml allows, in an environment of their own: the main paths
	$(PYTHON) -m venv out/oldest
	out/oldest/bin/pip install --quiet --no-compile -c tools/oldest.txt '.[all,demo]' pytest hypothesis
	out/oldest/bin/python -m pytest -p no:cacheprovider -o filterwarnings=default $(OLDEST)

docs: $(DOCS)  ## the site with its gallery, into out/site; warnings are errors
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky -d out/doctrees docs out/site

docs-test: $(DOCS)  ## every page of the built site in headless Chromium: no error, no picture or link is broken
	$(BIN)/python -m tools.site out/site

# No more than the demo runs on; Python compiles only the modules that are imported. What the demo
# needs is installed first and the core built then, so that the two times can be told apart.
$(DEMO): pyproject.toml core/CMakeLists.txt
	@start=$$(date +%s); \
	$(PYTHON) -m venv .venv || exit; \
	$(PYTHON) -m tools.requirements demo > .venv/demo.txt || exit; \
	$(BIN)/pip install --quiet --no-compile -r .venv/demo.txt || exit; \
	installed=$$(date +%s); \
	$(BIN)/pip install --quiet --no-compile --no-deps --editable . || exit; \
	built=$$(date +%s); \
	echo "installed what the demo needs in $$((installed - start)) s, built knothole in $$((built - installed)) s"
	@touch $(DEMO)

# The rest. All is compiled here, since warnings are errors in the tests, the compiler's too.
$(STAMP): $(DEMO)
	$(BIN)/pip install --quiet --no-compile --editable '.[test]'
	-$(BIN)/python -W ignore -m compileall -qq -j 2 .venv/lib
	touch $(STAMP)

$(DOCS): $(DEMO)
	$(BIN)/pip install --quiet --no-compile --editable '.[docs]'
	touch $(DOCS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis out docs/api docs/gallery
