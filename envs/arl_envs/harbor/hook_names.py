"""The names of files, folders, modules and variables by which `hooks.py` judges."""

from __future__ import annotations

import re

_PYTHON = ("conftest.py", "*.pth", "*._pth", "*.pyc")
_PYTHON_TOOLS = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", ".coveragerc", "*.egg-link", "pyvenv.cfg", ".pdbrc*", "pip.conf"),
    *(".pydistutils.cfg", ".python-version", "entry_points.txt", "uv.toml", "__pyvenv__*"),
)
_SHELLS = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
    *(".inputrc", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".kshrc", ".envrc"),
)
_OTHERS = (
    *(".gitconfig", ".gitattributes", ".gitmodules", ".hgrc", ".npmrc", ".yarnrc*", ".mocharc*"),
    *("jest.config.*", "vitest.config.*", "babel.config.*", ".babelrc*", ".rspec", ".irbrc"),
    *("phpunit.xml*", ".gdbinit", ".curlrc", ".wgetrc", ".netrc", "ld.so.preload", "crontab"),
    *("phpunit.dist.xml", ".user.ini", ".lldbinit", ".rprofile", ".renviron", ".proverc"),
    *(".octaverc", ".erlang", ".ghci", ".pryrc", ".nycrc*", ".taprc", ".pnpmfile.*", "bunfig.toml"),
    *(".bazelrc", "directory.build.*", "nuget.config", "gnumakefile", "go.work", "rust-toolchain*"),
)
NAMES = (*_PYTHON, *_PYTHON_TOOLS, *_SHELLS, *_OTHERS)
"""The patterns of names that are hooks in any folder."""
FOLDERS = (
    *("__pycache__", ".pytest_cache", "site-packages", "dist-packages", ".hypothesis"),
    *(".git/hooks", ".git/config", ".git/config.worktree", ".git/info", ".git/commondir"),
    *(".git/modules", ".git/worktrees", ".hg/hgrc", ".config", ".local", ".cargo", ".husky"),
    *(".mvn", ".vscode", ".idea", "cron.d"),
)
"""The folders, in any folder, below which everything is a hook."""
STARTUP_MODULES = ("sitecustomize", "usercustomize")
RUNNERS = (
    *("pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "nose2", "hypothesis", "pip"),
    *("packaging", "pygments", "exceptiongroup", "tomli", "attr", "attrs", "colorama", "coverage"),
    *("xdist", "execnet", "setuptools", "pkg_resources", "typing_extensions", "distutils", "imp"),
)
"""The modules of runners of tests, and those that they import if they are there."""

DOUBTFUL_NAMES = (
    *("*.config.*", "*.conf.*", "*.workspace.*", "*.runsettings", "*.code-workspace"),
    *("package.json", "tsconfig*.json", "jsconfig*.json", "jasmine.json", "testem.*", "deno.json*"),
    *("import_map.json", "nx.json", "turbo.json", "lerna.json", "cypress.json", "nightwatch.*"),
    *("gulpfile*", "gruntfile*", "guardfile", "pnpm-workspace.yaml", "tslint.json", "jakefile*"),
    *("noxfile.py", "fabfile.py", "dodo.py", "mypy.ini", "pylintrc*", "ruff.toml", "nose*.cfg"),
    *("unittest.cfg", "behave.ini", "ipython*_config.py", "jupyter*_config.*", "distutils.cfg"),
    *("init.gradle*", "settings.gradle*", "gradle.properties", "gradle-wrapper.*", "maven.config"),
    *("local.properties", "jvm.config", "composer.json", "php.ini", "phpstan*", "psalm.xml*"),
    *("config.toml.local", "cmake*presets.json", "ctesttestfile.cmake", "ctestcustom.*"),
    *("rprofile.site", "sitecustomize.pl", "luarc*", "startup.jl", "startup.m", "cabal.project*"),
    *("xunit.runner.json", "testconfig.json", "module.bazel", "workspace", "workspace.bazel"),
    *(
        "*.mk",
        "*.mak",
        "dune-workspace",
        "rustfmt.toml",
        "clippy.toml",
        "*.ipynb_config",
        "docker-compose*.y*ml",
    ),
)
"""The patterns of names of settings that tools look for beside or above what they work on."""
DOUBTFUL_FOLDERS = (
    *("node_modules", "bower_components", "vendor/bin", "vendor/bundle", "init.d", "perl5"),
    *("profile_default", "etc/ipython", "etc/jupyter", "conf.d", "gradle/wrapper"),
)
BUILD_FILES = (
    *("makefile*", "*.mk", "cargo.toml", "build.rs", "go.mod", "pom.xml", "build.gradle*"),
    *(
        "build.xml",
        "cmakelists.txt",
        "justfile",
        "taskfile.*",
        "rakefile*",
        "gemfile*",
        "*.gemspec",
    ),
    *("sconstruct", "wscript", "meson.build", "configure", "configure.ac", "dune-project"),
    *("mix.exs", "rebar.config", "build.sbt", "project.clj", "deps.edn", "makefile.pl", "build.pl"),
    *("setup.py", "gradlew*", "mvnw*", "stack.yaml", "package.swift", "*.csproj", "*.sln"),
    *("test", "tests", "test.sh", "tests.sh", "test_all.sh", "run_tests*", "runtests*"),
    *("run-tests*", "run_test.*", "run-test.*", "check", "check.sh", "checks.sh", "verify.sh"),
    *("validate.sh", "grade.sh", "judge.sh", "run_checks*", "run-checks*"),
)
"""The names of files of the image that build or test a project when the tests start them."""
MAKEFILES = frozenset({"gnumakefile", "bsdmakefile", "makefile"})
OPEN_DOT_NAMES = (
    *(".git", ".gitignore", ".gitkeep", ".keep", ".hg", ".hgignore", ".svn", ".github"),
    *(".gitlab-ci.yml", ".travis.yml", ".circleci", ".dockerignore", ".npmignore"),
    *(".well-known", ".htaccess", ".htpasswd", ".env.example", ".gitlab", ".mailmap"),
)
"""The hidden files and folders that no tool of tests executes; some paths in them are hooks."""
HARMLESS_PACKAGE_KEYS = frozenset(
    {
        *("name", "version", "description", "type", "main", "module", "exports", "private"),
        *("license", "author", "keywords", "dependencies", "engines", "repository", "homepage"),
        *("devDependencies", "scripts", "bugs", "files", "bin"),
    }
)
"""The keys of a new package.json by which no tool is configured."""
BIN_FOLDERS = ("bin", "sbin", ".bin", "scripts")
INTERPRETER = re.compile(
    r"(?:python|pypy|pip|pytest|node|nodejs|npm|npx|yarn|pnpm|deno|bun|ruby|bundle|rake|gem|perl|"
    r"prove|php|lua|java|javac|bash|sh|dash|zsh|env|activate|uv|uvx|coverage|tox|nox|jest|mocha|"
    r"vitest|make|cmake|cargo|go|gcc|cc)[\d.]*(?:\.exe|\.js|\.fish|\.csh)?"
)
LIBRARY_VARIABLES = (
    *("PERL5LIB", "PERLLIB", "RUBYLIB", "GEM_PATH", "GEM_HOME", "NODE_PATH", "LUA_PATH"),
    *("LUA_CPATH", "TCLLIBPATH", "GUILE_LOAD_PATH", "JULIA_LOAD_PATH", "R_LIBS", "R_LIBS_USER"),
    *("AWKPATH", "AWKLIBPATH", "CDPATH", "CLASSPATH", "ERL_LIBS", "FPATH", "GCONV_PATH", "ZDOTDIR"),
    *("R_LIBS_SITE", "PHP_INI_SCAN_DIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME"),
    *(
        "PYTHONUSERBASE",
        "PYTHONHOME",
        "CARGO_HOME",
        "GRADLE_USER_HOME",
        "IPYTHONDIR",
        "NPM_CONFIG_PREFIX",
    ),
    *(
        "JUPYTER_CONFIG_DIR",
        "MPLCONFIGDIR",
        "CURL_HOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "RUSTUP_HOME",
    ),
)
"""The variables by which interpreters and tools look for modules and settings."""
CONFIG_VARIABLES = (
    *("BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONPATH", "NODE_OPTIONS", "RUBYOPT", "PERL5OPT"),
    *("PERL5DB", "LD_PRELOAD", "LD_AUDIT", "MAKEFILES", "*_CONFIG", "*_CONFIG_FILE", "*_CONF"),
    *("PYTEST_ADDOPTS", "PYLINTRC", "INPUTRC", "*RCFILE", "WGETRC", "JAVA_TOOL_OPTIONS", "PHPRC"),
    *("_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "NPM_CONFIG_USERCONFIG", "GIT_CONFIG_*", "LUA_INIT*"),
    *("SHELL", "PAGER", "EDITOR", "GIT_PAGER", "GIT_EDITOR", "MAKE", "CC", "CXX", "PYTHON"),
    *("R_PROFILE*", "R_ENVIRON*", "NODE_EXTRA_CA_CERTS", "*_INTERPRETER", "PYTHONBREAKPOINT"),
)
"""The patterns of variables whose value names a file that is executed or configures a program."""
