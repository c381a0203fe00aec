"""Random JSON schemas for the tests of what has to fit one."""

import random


class Schemas:
    """Random JSON schemas whose values are short."""

    names = ("id", "name", "tags", "x y", "größe", 'a"b', "nested", "list")
    formats = ("date", "time", "date-time", "ipv4", "uuid")

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def schema(self, depth):
        kinds = [self.integer, self.number, self.string, self.enum, self.const, self.plain]
        if depth < 3:
            kinds += [self.object, self.object, self.array, self.any_of, self.reference]
        return self.random.choice(kinds)(depth)

    def integer(self, _):
        low = self.random.randint(-5000, 5000)
        return {"type": "integer", "minimum": low, "maximum": low + self.random.randint(0, 9000)}

    def number(self, _):
        low = round(self.random.uniform(-50, 50), 2)
        bound = self.random.choice(["maximum", "exclusiveMaximum"])
        return {"type": "number", "minimum": low, bound: low + self.random.randint(1, 90)}

    def string(self, _):
        least = self.random.randint(0, 4)
        forms = [
            {"minLength": least, "maxLength": least + self.random.randint(0, 9)},
            {"pattern": self.random.choice([r"^[a-f]{2,5}$", r"^\d{3}-\d{2}$", r"^(north|south)(east|west)?$"])},
        ]
        if self.formats:
            forms.append({"format": self.random.choice(self.formats)})
        return {"type": "string", **self.random.choice(forms)}

    def enum(self, _):
        values = [1, -2.5, "one", 'two "quoted" \\ words', "žluť", None, True, {"a": [1, "b"]}, []]
        return {"enum": self.random.sample(values, self.random.randint(1, 5))}

    def const(self, _):
        return {"const": self.random.choice([0, "constant", False, {"k": None}, [1, 2]])}

    def plain(self, _):
        return {"type": self.random.choice(["boolean", "null", ["boolean", "null"]])}

    def object(self, depth):
        names = self.random.sample(self.names, 4)
        properties = {name: self.schema(depth + 1) for name in names[: self.random.randint(0, 4)]}
        required = [name for name in properties if self.random.random() < 0.7]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def array(self, depth):
        least = self.random.randint(0, 2)
        schema = {"type": "array", "minItems": least, "maxItems": least + self.random.randint(0, 2)}
        if self.random.random() < 0.3:
            prefix = [self.schema(depth + 1) for _ in range(2)]
            return {"type": "array", "prefixItems": prefix, "items": False, "minItems": self.random.randint(0, 2)}
        return {**schema, "items": self.schema(depth + 1)}

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth + 1) for _ in range(self.random.randint(1, 3))]}

    def reference(self, depth):
        name = f"part{len(self.definitions)}"
        self.definitions[name] = {}
        self.definitions[name] = self.schema(depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def document(self):
        kind = self.random.choice([self.object, self.object, self.object, self.array, self.any_of])
        return {**kind(0), "$defs": self.definitions}


class GemmaSchemas(Schemas):
    """Schemas that Gemma 4's form of calls has a place for."""

    names = tuple(name for name in Schemas.names if '"' not in name)
    formats = ()
