"""Character level of the parser: positions, white space, comments, errors with line and column."""

import bisect
import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MARK = re.compile(r"//@\s*([^\s:]+):(\d+)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
LINE_DIRECTIVE = re.compile(r"\.(?:loc|file)\b")  # not .local
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s,;{]+")
_BRACE = re.compile(r"[{}]")


class Scanner:
    """A position in a PTX text whose comments are blanked out, and what was wrong with it."""

    def __init__(self, text, name):
        self.name = name
        self.errors = []
        self.lines = [0] + [m.end() for m in re.finditer("\n", text)]
        self.marks = {}
        if "//@" in text:
            for i, ln in enumerate(text.split("\n"), 1):
                m = _MARK.search(ln)
                if m:
                    self.marks[i] = f"{m.group(1)}:{m.group(2)}"
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self.pos, self.end = 0, len(self.text)
        self.files, self.loc = {}, None

    def where(self, pos):
        """Line and column, from 1."""
        ln = bisect.bisect_right(self.lines, pos)
        return ln, pos - self.lines[ln - 1] + 1

    def error(self, msg, pos=None):
        """Record a problem and go on."""
        self.errors.append((*self.where(self.pos if pos is None else pos), msg))

    def skip_ws(self):
        """Move behind white space; False at the end of the text."""
        self.pos = _SPACE.match(self.text, self.pos).end()
        return self.pos < self.end

    def to_semicolon(self):
        """Text up to the next ``;``; the position moves behind it."""
        e = self.text.find(";", self.pos)
        if e < 0:
            self.error("statement is not ended by ';'")
            e = self.end
        s = self.text[self.pos : e]
        self.pos = min(e + 1, self.end)
        return s

    def rest_of_line(self):
        """Text up to the end of the line."""
        e = self.text.find("\n", self.pos)
        e = self.end if e < 0 else e
        s = self.text[self.pos : e]
        self.pos = e
        return s

    def match_brace(self):
        """Position is on an opening brace: move behind its partner."""
        depth = 0
        for m in _BRACE.finditer(self.text, self.pos):
            depth += 1 if m.group() == "{" else -1
            if depth == 0:
                self.pos = m.end()
                return
        self.error("missing '}'")
        self.pos = self.end

    def word(self):
        """Next word, or None after a report."""
        self.skip_ws()
        m = _WORD.match(self.text, self.pos)
        if not m:
            self.error("a word was expected")
            return None
        self.pos = m.end()
        return m.group()

    def line_directive(self):
        """``.file`` and ``.loc`` end at the line, not at a semicolon."""
        s = self.rest_of_line()
        m = _FILE.match(s)
        if m:
            self.files[int(m.group(1))] = m.group(2)
            return
        m = _LOC.match(s)
        if m:
            self.loc = (int(m.group(1)), int(m.group(2)))

    def source(self, line):
        """Where the author wrote a line: template marker, ``.loc``, or the text itself."""
        where = self.marks.get(line)
        if where is None and self.loc is not None and self.loc[0] in self.files:
            where = f"{self.files[self.loc[0]]}:{self.loc[1]}"
        return where or f"{self.name}:{line}"
