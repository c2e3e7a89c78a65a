"""The text of the prompts: varied prose made here, or the user's own file.

Text that repeats makes drafts easy to guess and the server look faster than it is. The built-in text is therefore put together
from many sentence forms, subjects and words, anew for each prompt, and no sentence comes twice in one text (tested).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddtree_metrics.errors import BenchError

GENERATOR = "prose-1"
"""Name of the built-in text; it changes when the text does."""


def _words(text: str) -> list[str]:
    return text.split()


_FIRST = _words(
    """
    Ada Amir Anneke Bastian Beatrix Bodil Camille Dario Dunya Edda Emeka Farah Fenna Gideon Greta Hamza Hedwig Ilse Imran Ines Jonas
    Juno Kamala Kasper Keiko Leif Lotte Lucian Mabel Marek Mira Nadia Nils Odile Osman Petra Quentin Ravi Rosalind Ruben Saskia
    Selim Sigrid Tamsin Tariq Tomasz Ulla Vasco Veronika Wanda Willem Xenia Yara Yusuf Zelda
    """
)
_LAST = _words(
    """
    Abendroth Achterberg Bellamy Brandt Castellano Carrow Dahlgren Dvorak Eskola Farrow Fitzgibbon Galloway Haddad Holm Ibarra
    Jansen Karimi Kowalczyk Lindqvist Lovelace Marchetti Moreau Nakamura Novak Okafor Ostrander Pellegrino Pryce Quist Rahimi
    Rosendal Sandoval Szabo Thornbury Tremblay Ueda Valdez Voss Whitlock Winther Yildiz Zimmer
    """
)
_PLACES = _words(
    """
    Aldermoor Birkenau Brackwater Calder Dunmere Eastlight Fennimore Garrow Hollin Inverlay Jarrow Kestrel Larkhill Marrow
    Nethercote Oldwick Pendle Quarley Rookhope Saltash Tarn Ulverston Varley Westerby Yarrow
    """
)
_THINGS = {
    "harbour": """anchor barge beacon buoy cable cargo chart compass crane crate crew current deck dredger ferry fog gangway gauge gull
        hull jetty keel lantern lighthouse mast mooring net pilot quay rope rudder sail sandbar signal sluice tide tug wharf winch""",
    "orchard": """apple barrel basket bee blossom branch bud cart cellar cider crop dew drought fence frost graft hail harvest hedge hive
        juice kernel ladder leaf orchard pear plum press pruner quince rootstock row sapling scarecrow seed shears soil trunk weevil""",
    "workshop": """anvil apprentice awl bellows bench bolt brass chisel clamp cog dowel drill file forge furnace gear glue hammer hinge
        ingot jig lathe ledger mallet mould nail oil pattern plane rivet ruler sandpaper saw solder spring template vice wheel wrench""",
    "archive": """album atlas binder catalogue census clerk codex deed diary document envelope folio fragment index inkwell inventory
        journal ledger letter manuscript map margin microfilm novel pamphlet parchment photograph quill receipt register scroll seal
        shelf stamp telegram title typewriter vellum volume""",
    "railway": """axle ballast boiler brake bridge buffer carriage coal conductor coupling crossing cutting depot driver embankment engine
        fireman freight guard junction locomotive luggage mailbag passenger piston platform porter rail semaphore siding signalman
        sleeper station steam switch tender ticket timetable track tunnel viaduct wagon""",
    "observatory": """aperture asteroid astronomer calibration camera cluster comet constellation dome eclipse eyepiece filter focus galaxy
        grating horizon lens lunar magnitude meridian meteor mirror nebula orbit parallax photometer planet plate prism pulsar
        satellite sensor shutter spectrum star sunspot telescope transit tripod zenith""",
    "kitchen": """almond bowl broth butter cardamom cauldron cheese cinnamon cook crust dough fennel flour garlic ginger griddle herb honey
        kettle ladle lemon lentil mushroom mustard olive onion oven pan parsley pastry pepper recipe saffron salt sauce skillet spoon
        stew syrup thyme vinegar yeast""",
    "marsh": """alder bittern bog bulrush causeway crane crayfish dam dragonfly duckboard eel egret fen flood heron iris kingfisher lark
        marsh midge moss mud newt otter peat pike plover pond punt reed rush sedge silt snipe spring stilt stream swallow toad warbler
        willow""",
    "theatre": """actor aisle applause audience backdrop balcony ballad box cast chorus comedy costume critic cue curtain dancer dialogue
        director dressing fiddle footlight gallery greasepaint interval joke mask melody monologue orchestra overture playwright prompter
        rehearsal scene script soprano spotlight stage tenor trapdoor usher wardrobe""",
    "clinic": """ambulance ampoule bandage bedside chart clinic cough diagnosis dose fever forceps fracture gauze glove infusion injection
        laboratory matron medicine microscope midwife needle nurse ointment patient pharmacist pill plaster pulse remedy scalpel serum
        splint stethoscope surgeon symptom syringe tablet thermometer tonic vaccine ward""",
}
_ADJECTIVES = _words(
    """
    abandoned amber ancient awkward barren battered bitter blunt borrowed brittle broad careful cheap clumsy cold copper costly
    crooked curious damp dark delicate dim distant double dry dull dusty eager early empty even faded faint familiar fine flat
    foreign fragile fresh frozen gentle gilded grey half-finished hasty heavy hidden hollow honest humble idle iron jagged keen
    large late light lonely loose lost loud low narrow neat new nimble noisy odd old open ordinary painted pale patient plain
    polished poor precise quick quiet rare raw rough round rusty salty scarce secret shallow sharp silent silver simple slender slow
    small soft solid sour spare stale steep stiff strange stubborn sturdy sudden tall tangled thick thin tidy tired uneven upright
    useful vacant wary weathered wet wide wild wooden worn yellow
    """
)
_VERBS = _words(
    """
    accepted adjusted admired altered balanced blamed borrowed bought broke brought built buried carried caught changed checked
    claimed cleaned closed collected compared copied counted covered crossed described divided drew dropped emptied examined
    exchanged fetched filled fixed followed forgot found gathered greased guarded hid hired ignored inspected joined kept lent
    lifted lit locked lost measured mended missed mixed moved named noticed offered opened ordered packed painted paid patched
    placed polished praised promised pulled pushed questioned raised recognised refused remembered removed repaired replaced rescued
    returned saved scrubbed sealed sent shared sketched sold sorted split stacked stole studied swapped taught tested tied took
    traced traded turned unloaded unpacked wanted warmed washed watched weighed wrapped
    """
)
_HOW = """almost at once|against all advice|before breakfast|by lamplight|by mistake|for a modest fee|for the second
time|from memory|in a hurry|in complete silence|in spite of the rain|on a Tuesday|on purpose|out of habit|quite
by chance|rather late|twice a week|under protest|with both hands|with borrowed money|with great care|with little
hope|without a word|without asking anyone|without looking up|as usual|after some argument|half asleep|in good
faith|to everyone's surprise""".replace("\n", " ").split("|")
_WHEN = """That spring|The following week|Long afterwards|Towards noon|By the end of the month|Just before dusk|In the
meantime|Earlier that year|On the third day|Some hours later|As soon as the weather turned|During the
strike|While the others slept|Shortly after the fair|At the next meeting|In the winter of that year|Before
anyone could object|When the bell rang|Once the accounts were settled|Between two storms""".replace("\n", " ").split("|")
_SAID = [
    "insisted",
    "admitted",
    "wrote",
    "suspected",
    "explained",
    "denied",
    "remarked",
    "feared",
    "recalled",
    "argued",
    "maintained",
    "guessed",
]
_BECAUSE = """because nobody else would|so that the work could go on|although it made no difference|until the money ran
out|since the rules allowed it|as if nothing had happened|which surprised the neighbours|though few believed
it|unless the records are wrong|so the matter was dropped|and the price went up again|but the question stayed
open""".replace("\n", " ").split("|")


class _Writer:
    """Sentences about one or two subjects at a time, moving on to others as the text goes on."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.topics = {name: words.split() for name, words in _THINGS.items()}
        self.move_on()

    def move_on(self) -> None:
        names = self.rng.sample(sorted(self.topics), 2)
        self.place = f"the {names[0]} at {self.rng.choice(_PLACES)}"
        self.nouns = self.topics[names[0]] + self.topics[names[1]][::2]
        self.people = [f"{self.rng.choice(_FIRST)} {self.rng.choice(_LAST)}" for _ in range(4)]

    def thing(self, article: str = "the") -> str:
        noun = self.rng.choice(self.nouns)
        if self.rng.random() < 0.6:
            noun = f"{self.rng.choice(_ADJECTIVES)} {noun}"
        if article == "a" and noun[0] in "aeiou":
            article = "an"
        return f"{article} {noun}"

    def who(self) -> str:
        person = self.rng.choice(self.people)
        return person if self.rng.random() < 0.5 else person.split()[self.rng.random() < 0.4]

    def sentence(self) -> str:
        pick, number = self.rng.choice, self.rng.randint
        verb, who, thing = pick(_VERBS), self.who(), self.thing
        form = number(0, 13)
        if form == 0:
            return f"{pick(_WHEN)}, {who} {verb} {thing()} and {pick(_VERBS)} {thing('a')} {pick(_HOW)}."
        if form == 1:
            return f"{who} {verb} {thing()} {pick(_HOW)}, {pick(_BECAUSE)}."
        if form == 2:
            return f"There were {number(3, 980)} of them in {self.place}, each beside {thing('a')}."
        if form == 3:
            return f"“{thing().capitalize()} is {pick(_ADJECTIVES)},” {who} {pick(_SAID)}, “and {thing()} is worse.”"
        if form == 4:
            return f"Nobody at {self.place} {verb} {thing()} after {number(1780, 2019)}, {pick(_BECAUSE)}."
        if form == 5:
            return f"It took {who} {number(2, 60)} days to see that {thing()} had been {pick(_ADJECTIVES)} from the start."
        if form == 6:
            return f"Of {thing()}, {thing()} and {thing()}, only the last was ever {pick(_ADJECTIVES)}."
        if form == 7:
            return f"Did {who} know about {thing()}? {pick(_WHEN)} {self.who()} {pick(_SAID)} that {thing('a')} was missing."
        if form == 8:
            return f"The report lists {thing('a')} ({number(2, 400)} kg), {thing('a')} and {number(4, 75)} {pick(_ADJECTIVES)} crates."
        if form == 9:
            return f"{thing().capitalize()} stood {number(2, 90)} paces from {thing()}; {who} {verb} both {pick(_HOW)}."
        if form == 10:
            return f"{pick(_WHEN)} the price of {thing('a')} rose from {number(2, 40)} to {number(41, 300)} crowns, {pick(_BECAUSE)}."
        if form == 11:
            return f"{who} {pick(_SAID)} that {thing()} belonged to {self.who()}, who had {pick(_HOW)} left it near {thing()}."
        if form == 12:
            return f"If {thing()} had been {pick(_ADJECTIVES)}, {who} would never have gone to {pick(_PLACES)} for {thing('a')}."
        return f"Two people {verb} {thing()}: {who}, {pick(_HOW)}, and a {pick(_ADJECTIVES)} stranger from {pick(_PLACES)}."


def prose(seed: str) -> Iterator[str]:
    """Yield sentences without end, the same ones for the same seed, none of them twice.

    Parameters
    ----------
    seed : str
        Any text.
    """
    rng = random.Random(f"{GENERATOR}/{seed}")
    writer, seen = _Writer(rng), set[str]()
    left = rng.randint(4, 9)
    while True:
        sentence = writer.sentence()
        if sentence in seen:
            continue
        seen.add(sentence)
        left -= 1
        if left == 0:
            writer.move_on()
            left = rng.randint(4, 9)
            sentence += "\n\n"
        yield sentence


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Where prompts come from.

    Parameters
    ----------
    seed : int
        Same seed, same prompts; two sweeps to be compared should share it.
    text : str or None
        The user's own text; ``None`` for the built-in prose.
    name : str
        Name of the user's file, for the record.
    """

    seed: int = 0
    text: str | None = None
    name: str = ""

    @classmethod
    def from_file(cls, path: str | Path, seed: int = 0) -> PromptSource:
        """Read the user's text.

        Raises
        ------
        BenchError
            If the file cannot be read, is not UTF-8 text, or is empty.
        """
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise BenchError(f"cannot read the prompt file {path}: {reason}") from None
        if len(text.split()) < 8:
            raise BenchError(f"the prompt file {path} holds fewer than eight words; give a longer text")
        return cls(seed, text, Path(path).name)

    @property
    def description(self) -> str:
        """What is used, in words."""
        if self.text is None:
            return f"built-in varied prose ({GENERATOR}, seed {self.seed}), a fresh text each round"
        return f"the text of {self.name} ({len(self.text)} characters), begun at another place each round"

    def head(self, key: str) -> str:
        """Return the words that no other prompt begins with, so that no prefix cache can help.

        They depend on the seed and the key only: the same sweep can be made again.
        """
        rng = random.Random(f"head/{self.seed}/{key}")
        return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}, {rng.randint(100, 999)} {rng.choice(_PLACES)}. "

    def make(self, key: str, characters: int) -> tuple[str, bool]:
        """Make the text of one prompt.

        Parameters
        ----------
        key : str
            Names the prompt, ``"1024/3/0"``; each key has its own text.
        characters : int
            How long it must be at least.

        Returns
        -------
        text : str
        repeats : bool
            Whether the user's text had to be used more than once to fill it.
        """
        head = self.head(key)
        if self.text is None:
            parts, length = [head], len(head)
            for sentence in prose(f"{self.seed}/{key}"):
                parts.append(sentence if sentence.endswith("\n\n") else sentence + " ")
                length += len(parts[-1])
                if length >= characters:
                    return "".join(parts), False
        text = self.text or ""
        starts = [0] + [i + 1 for i, c in enumerate(text) if c in " \n"]
        start = random.Random(f"start/{self.seed}/{key}").choice(starts)
        turned = text[start:] + "\n\n" + text[:start]
        times = -(-characters // max(1, len(turned)))
        return head + "\n\n".join([turned] * max(1, times)), times > 1
