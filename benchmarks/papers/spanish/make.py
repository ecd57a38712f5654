# ruff: noqa: E501 - lists of words and patterns are easier to read with several on a line
"""SYNTHETIC text: made-up clinical notes in Spanish of three sites, for the recipe `notas-es`.

python benchmarks/papers/spanish/make.py

Everything here was written by the authors of confide. No line comes from a patient, a hospital or
a published corpus; the drugs, the people and the addresses do not exist. Each site has its own
names for the same four things, its own file form and its own words. The notes are dense in
abbreviations (Avda., Dra., c/8 h, v.o.), after which a splitter of English cuts; half of the drugs
in the test text occur in no training text.
"""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "src/confide/corpora/notas_es"
PARTS = {"train": 48, "dev": 12, "test": 24}
"""Notes of each part; a note has three to five sentences."""
TYPES = ("FARMACO", "DOSIS", "DIAGNOSTICO", "CALLE")
_SLOT = re.compile(r"\{(\w+)\}")
SYLLABLES = "ra me lo vi tan zo per ca du fe bri so nal ti mo rel ku be ar xi pan gla dri".split()  # noqa: SIM905
WORDS = {
    "persona": ["García Soler", "Ortuño", "Vidal", "J. A. Robles", "M.ª José Ibarra", "Llopis", "Echeverría", "Núñez"],
    "titulo": ["Dr.", "Dra.", "el Dr.", "la Dra.", "Prof."],
    "hora": ["las 8.30 h", "las 23.15 h", "mediodía"],
    "fecha": ["el 3 de feb. de 2021", "hace 2 días", "el lun. pasado", "en oct. de 2019", "ayer"],
    "edad": ["34", "58", "67", "71", "82", "45"],
    "via": ["v.o.", "i.v.", "s.c.", "i.m."],
    "cada": ["c/8 h", "c/12 h", "c/24 h", "cada 6 h", "por la noche", "si dolor"],
    "num": ["3,5", "9,8", "12", "110", "0,9", "4,1"],
    "calle": [
        "Avda. de la Paz, {n}", "C/ Mayor, núm. {n}", "Ctra. de Onil, km. {n}", "Pza. del Olmo, {n}", "Avda. Blasco, {n}, 2.º B",
        "Pº. de la Ribera, {n}", "C/ Sta. Clara, {n}", "Urb. Los Fresnos, bl. {n}",
    ],
    "n": ["3", "14", "27", "8", "112", "45"],
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A site: its names for `TYPES`, whether it writes doccano's form, and its words."""

    names: tuple[str, ...]
    doccano: bool
    endings: tuple[str, ...]
    diagnoses: tuple[str, ...]
    doses: tuple[str, ...]
    patterns: tuple[str, ...]


PLACES = {
    "urgencias": Place(
        TYPES, False, ("profeno", "cilina", "setrón", "mizol"),
        ("apendicitis aguda", "cólico renal dcho.", "neumonía", "fractura de cadera", "gastroenteritis", "cefalea tensional",
         "crisis asmática", "pielonefritis", "síncope", "esguince de tobillo"),
        ("500 mg", "1 g", "2 amp.", "40 mg", "600 mg"),
        ("Varón de {edad} años que acude por {dx} de 2 días de evolución.", "Vive en {calle}, con su hija.",
         "Valorado por {titulo} {persona}, que pauta {farmaco} {dosis} {via} {cada}.", "Afebril, T.A. 130/80 mmHg, F.C. 82 l.p.m.",
         "Alta a {hora} con {farmaco} {dosis}.", "Traslado desde {calle} en ambulancia.", "Niega alergias a {farmaco} y a {farmaco}.",
         "Impresión: {dx}.", "Se descarta {dx} tras la ecografía.", "Anal.: Hb. {num} g/dl, plaq. {num}.",
         "Rx. de tórax sin {dx}.", "Tras {farmaco} {dosis} {via} mejora la {dx}.", "Control por su M.A.P. en 48 h.",
         "Refiere que toma {farmaco} {cada} por {dx}.", "Se avisa a {titulo} {persona} a {hora} de hoy."),
    ),
    "cardiologia": Place(
        ("medicamento", "dosis", "diagnostico", "direccion"), True, ("pril", "sartán", "olol", "statina", "xabán"),
        ("fibrilación auricular", "insuf. cardíaca", "angina estable", "IAM inferior", "HTA", "estenosis aórtica",
         "flutter auricular", "derrame pericárdico", "bloqueo A.V. de 2.º grado", "miocardiopatía"),
        ("2,5 mg", "5 mg", "10 mg", "80 mg", "1/2 comp.", "20 mg"),
        ("Paciente de {edad} años con {dx} conocida desde 2009.", "En tto. con {farmaco} {dosis} {cada} y {farmaco} {dosis}.",
         "Se suspende {farmaco} por {dx}.", "Eco: F.E. {num} %, V.I. no dilatado.", "Remitida por {titulo} {persona} del Hosp. Gral. de Onda.",
         "Domicilio: {calle}, tfno. 600 00 00 00.", "E.C.G.: ritmo sinusal a 72 l.p.m., sin {dx}.", "Se inicia {farmaco} a {dosis} {via}.",
         "Dx. principal: {dx}.", "Última cita {fecha}, con {titulo} {persona}.", "Sube {farmaco} hasta {dosis} si T.A. > 140.",
         "Sin {dx} en el Holter hecho {fecha}.", "Cambia de domicilio a {calle}, según su esposa.", "{farmaco} bien tolerado.",
         "Por {dx} recibe {farmaco} {dosis} {cada}."),
    ),
    "primaria": Place(
        ("DRUG", "DOSE", "DISEASE", "STREET"), False, ("gliptina", "oxetina", "zepam", "prazol", "terol"),
        ("diabetes tipo 2", "depresión", "asma", "lumbalgia", "hipotiroidismo", "ansiedad", "reflujo", "rinitis alérgica",
         "artrosis de rodilla", "infección de orina"),
        ("1 comp.", "20 mg", "2 puls.", "850 mg", "5 ml", "un sobre"),
        ("Viene por {dx}.", "Pide recetas de {farmaco} {dosis}.", "Su {dx} va mejor con {farmaco}.", "Aviso a domicilio en {calle}, 3.er piso.",
         "Empiezo {farmaco} {dosis} {cada} por {dx}.", "Dejó {farmaco} por su cuenta {fecha}.", "Informe de {titulo} {persona}: {dx}.",
         "La vecina de {calle} llama por ella.", "No tiene {dx}, aunque lo teme.", "Gluc. {num} mg/dl, col. {num}.",
         "Antec.: {dx} y {dx}.", "Con {farmaco} {dosis} duerme bien.", "La vio {titulo} {persona} {fecha}.",
         "Madre con {dx}; él, sano.", "Sigue con {farmaco}, baja a {dosis} {cada}."),
    ),
}  # fmt: skip
SLOTS = {"farmaco": 0, "dosis": 1, "dx": 2, "calle": 3}


class Writer:
    """Fills a site's patterns at random."""

    def __init__(self, site: str, part: str) -> None:
        self.place, self.random = PLACES[site], random.Random(f"notas-es {site} {part}")
        names = random.Random(f"notas-es {site}")
        drugs = sorted({"".join(names.sample(SYLLABLES, names.randint(1, 2))) + ending
                        for ending in self.place.endings for _ in range(8)})  # fmt: skip
        names.shuffle(drugs)
        self.drugs = drugs[: len(drugs) * 2 // 3] if part == "train" else drugs

    def fill(self, pattern: str, text: str, marks: list[tuple[int, int, int]]) -> str:
        """The text with a filled pattern behind it; entities go to `marks`."""
        for number, piece in enumerate(_SLOT.split(pattern)):
            if number % 2 == 0:
                text += piece
                continue
            start = len(text)
            text = self.fill(self.random.choice(self.options(piece)), text, marks)
            if piece in SLOTS:
                marks.append((start, len(text), SLOTS[piece]))
        return text

    def options(self, slot: str) -> list[str] | tuple[str, ...]:
        """What may stand in a slot."""
        own = {"farmaco": self.drugs, "dosis": self.place.doses, "dx": self.place.diagnoses}
        return own[slot] if slot in own else WORDS[slot]

    def note(self, id: str) -> dict[str, object]:
        """A note as a record; its sentences stand on one line."""
        text, marks = "", list[tuple[int, int, int]]()
        for _ in range(self.random.randint(3, 5)):
            pattern = self.random.choice(self.place.patterns)
            text = self.fill(pattern if not text else f" {pattern}", text, marks)
            text = text[:-1] if text.endswith("..") else text  # "s.c." ends its sentence
        spans = [(start, end, self.place.names[kind]) for start, end, kind in marks]
        if self.place.doccano:
            return {"id": id, "text": text, "label": spans}
        entities = [{"start": start, "end": end, "type": kind} for start, end, kind in spans]
        return {"id": id, "text": text, "entities": entities}


def make(folder: Path) -> list[Path]:
    """Write all files; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for site in PLACES:
        for part, count in PARTS.items():
            writer = Writer(site, part)
            notes = [writer.note(f"{site}-{part}-{number:02}") for number in range(1, count + 1)]
            lines = [json.dumps(note, ensure_ascii=False) + "\n" for note in notes]
            paths.append(folder / f"{site}-{part}.jsonl")
            paths[-1].write_text("".join(lines), encoding="utf-8", newline="\n")
    return paths


if __name__ == "__main__":
    for path in make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(path)
