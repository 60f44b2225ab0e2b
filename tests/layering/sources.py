"""The sources of the tree: which there are, and their code without comments."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPP = {".cpp", ".hpp", ".h", ".cu", ".cuh"}
CMAKE = {".txt", ".cmake"}
FOLDERS = ("bindings", "codegen", "examples", "generated", "runtime", "tests", "tools")

COMMENT_OR_STRING = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|(?P<raw>R"(?P<mark>\w*)\(.*?\)(?P=mark)")'
    r'|"(?:\\.|[^"\\\n])*"',
    re.DOTALL,
)


def files(suffixes, folders=FOLDERS):
    """All files of those folders with one of the suffixes, as paths from the root."""
    return sorted(
        path.relative_to(ROOT)
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    )


def code_of(path):
    """The text of a file with its comments and docstrings blanked out; line numbers stay."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".py":
        return _python_code(text)
    if path.suffix in CMAKE:
        return re.sub(r"(^|\s)#[^\n]*", r"\1", text)
    return COMMENT_OR_STRING.sub(lambda m: _blank(m[0]) if m["comment"] else m[0], text)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def _python_code(text):
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            for i in range(node.lineno - 1, node.end_lineno):
                lines[i] = ""
    return "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in lines)


def includes(path):
    """(line number, included path) of every #include; not of those within raw strings."""
    text = (ROOT / path).read_text(encoding="utf-8")
    code = COMMENT_OR_STRING.sub(lambda m: _blank(m[0]) if m["comment"] or m["raw"] else m[0], text)
    for number, line in enumerate(code.splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line):
            yield number, match[1]
