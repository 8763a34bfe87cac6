"""Declarations: variables of every space, parameters, registers, initial values."""

import re

from .literals import const_expr, float_bits, parse_float
from .operands import Reg, split_top
from .scanner import Scanner
from .statements import WIDTH, Variable

NAME = re.compile(r"[%$A-Za-z_][\w$]*")


class Declarations(Scanner):
    """Parses declarations; the entry being filled is ``self.entry``."""

    def new_reg(self, name, width, kind):
        """A new register of the entry."""
        r = Reg(len(self.entry.regs), name, width, kind)
        self.entry.regs.append(r)
        return r

    def parameters(self, text, pos):
        off = 0
        for item in split_top(text.strip()):
            if not item:
                continue
            v = self.declaration(item, pos)
            if v is None:
                continue
            v.offset = off = -(-off // v.align) * v.align
            off += v.size
            self.entry.params[v.name] = v
        self.entry.param_size = off

    def declaration(self, text, pos):
        """``.space .align N .type name[dims] = init``, in any usual order."""
        words = re.findall(r"\.\w+|[%$A-Za-z_][\w$]*(?:\s*\[[^\]]*\])*|\d+|=.*", text, re.DOTALL)
        space = ty = name = init = None
        align, vec, dims = 0, 1, []
        extern = False
        ptr = False
        i = 0
        while i < len(words):
            w = words[i]
            if w.startswith("="):
                init = w[1:].strip()
            elif w.startswith("."):
                k = w[1:]
                if k == "align":
                    i += 1
                    if not ptr:
                        align = int(words[i])
                elif k == "ptr":
                    ptr = True
                elif k in ("v2", "v4"):
                    vec = int(k[1])
                elif k in WIDTH:
                    ty = k
                elif k == "extern":
                    extern = True
                elif k in ("param", "shared", "global", "const", "local"):
                    space = space or k
            elif w[0].isdigit():
                pass
            else:
                m = re.match(r"([%$A-Za-z_][\w$]*)((?:\s*\[[^\]]*\])*)$", w)
                name = m.group(1)
                dims = [
                    const_expr(d) if d.strip() else 0
                    for d in re.findall(r"\[([^\]]*)\]", m.group(2))
                ]
            i += 1
        if ty is None or name is None:
            self.error(f"cannot parse declaration {' '.join(text.split())!r}", pos)
            return None
        es = WIDTH[ty] // 8
        n = vec
        for d in dims:
            n *= d
        data = None
        if init is not None:
            data = self.initializer(init, ty, pos)
            if dims and n == 0:
                n = len(data) // es
        return Variable(space or "param", name, max(align, es * vec), n * es, data, extern)

    def initializer(self, text, ty, pos):
        out = bytearray()
        w = WIDTH[ty]
        for item in text.replace("{", " ").replace("}", " ").split(","):
            item = item.strip()
            if not item:
                continue
            f = parse_float(item)
            v = float_bits(f, w) if f is not None else const_expr(item)
            if v is None:
                self.error(f"initial value {item!r} is not supported", pos)
                v = 0
            out += (v & ((1 << w) - 1)).to_bytes(w // 8, "little")
        return bytes(out)

    def variable(self, text, pos, table):
        v = self.declaration(text, pos)
        if v is not None:
            table[v.name] = v

    def registers(self, text, pos):
        """``.reg .type a, b, c<8>;``"""
        m = re.match(r"\.reg\s+((?:\.\w+\s*)+)(.*)$", text.strip(), re.DOTALL)
        if not m:
            self.error("cannot parse register declaration", pos)
            return
        kinds = [k for k in re.findall(r"\.(\w+)", m.group(1)) if k in WIDTH]
        if len(kinds) != 1 or re.search(r"\.v[24]\b", m.group(1)):
            self.error(f"register type {m.group(1).strip()!r} is not emulated", pos)
            return
        kind, scope = kinds[0], self.scopes[-1]
        scope.operands.clear()
        for item in m.group(2).split(","):
            item = item.strip()
            r = re.fullmatch(r"([%$A-Za-z_][\w$]*)\s*<\s*(\d+)\s*>", item)
            if r:
                scope.ranges[r.group(1)] = (int(r.group(2)), WIDTH[kind], kind)
            elif NAME.fullmatch(item):
                scope.regs[item] = self.new_reg(item, WIDTH[kind], kind)
            else:
                self.error(f"cannot parse register name {item!r}", pos)
