"""Measure how often ``cite`` classifies planted citations correctly.

    python benchmarks/citations.py MODEL [--gguf-file FILE] [--seed 0] [--scale 1.0] [--output FILE]
    python benchmarks/citations.py MODEL --statements held-out
    python benchmarks/citations.py MODEL --judged benchmarks/judged_statements.jsonl

The thresholds of ``cite`` were chosen on the *tuning* statements. The *held-out* statements have another
shape: their relations and known facts are new, the values include numbers and ordinary words, a passage
has two or three sentences, and the statement is the first sentence that the model generates from the
passages, if it contains the value.

Each prompt has five passages in random order: one or two that contain the fact, a competitor (the same
relation of another subject) and fillers. The statements are of these types:

- invented: the fact is invented, and one passage contains it;
- twice: the fact is invented, and two passages contain it in different words;
- nowhere: the fact is invented, and no passage contains it;
- known: the model knows the fact, and one passage contains it;
- known elsewhere: the model knows the fact, and no passage contains it;
- repeated: an answer states an invented fact twice;
- half known: the model sometimes writes the fact without a passage.

Whether a fact is known is established without ``cite``: the greedy answer to the question without
passages contains it. A fact is half known if, without passages, the model begins the statement as planted and
greedy decoding then writes another value, but at least one of eight sampled continuations writes this
one. The statement of a known fact is the first sentence of the greedy answer.

An invented statement is only counted if the model would write it: the greedy answer to the question with
the passages contains the value. The table also shows the results without this condition.

With ``--judged``, nothing is planted. The file contains answers and, for each statement, the passages
from which it must come according to a reader, and those from which it may come. ``cite`` agrees with the
reader if it names all passages of the first list, and no passage outside the second one.

In two of three prompts, the answer cites the right passage and a wrong one. In the third, it cites none,
and the result is correct if ``cite`` names exactly the used passages.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attnprobe import cite
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.data.tokenizer import locate_sentences
from hf_attnprobe.inference.answers import (
    decode_tokens,
    generate_answers,
    render_prompt,
    tokenize_prompt,
)


@dataclass(frozen=True)
class Relation:
    """Templates for one relation between a subject x and a value v.

    Attributes:
        question: The question about the subject.
        statement: The answer.
        passages: Wordings of a passage that contains the fact.
        values: Values to draw from; empty for invented names.
    """

    question: str
    statement: str
    passages: tuple[str, str]
    values: tuple[str, ...] = ()


INVENTED_RELATIONS = [
    Relation(
        "Who is the director of the {x} Museum?",
        "The director of the {x} Museum is {v}.",
        (
            "The director of the {x} Museum is {v}.",
            "Since 2015, {v} has been the director of the {x} Museum.",
        ),
    ),
    Relation(
        "In which town was {x} born?",
        "{x} was born in {v}.",
        ("{x} was born in {v}.", "The birthplace of {x} is the town of {v}."),
    ),
    Relation(
        "What is the name of the dog of {x}?",
        "The dog of {x} is called {v}.",
        ("The dog of {x} is called {v}.", "{x} has a dog with the name {v}."),
    ),
    Relation(
        "Which company built the {x} Bridge?",
        "The {x} Bridge was built by {v}.",
        (
            "The {x} Bridge was built by {v}.",
            "The company {v} is known because it built the {x} Bridge.",
        ),
    ),
]
KNOWN_RELATION = Relation(
    "What is the capital of {x}?",
    "The capital of {x} is {v}.",
    ("The capital of {x} is {v}.", "{v} is the capital of {x}."),
)
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Russia": "Moscow",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Ireland": "Dublin",
    "Portugal": "Lisbon",
    "Hungary": "Budapest",
    "Turkey": "Ankara",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Argentina": "Buenos Aires",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Canada": "Ottawa",
    "Australia": "Canberra",
    "Mexico": "Mexico City",
    "South Korea": "Seoul",
    "Ukraine": "Kyiv",
    "Romania": "Bucharest",
    "Bulgaria": "Sofia",
    "Morocco": "Rabat",
    "Indonesia": "Jakarta",
    "Philippines": "Manila",
    "Colombia": "Bogotá",
    "Ethiopia": "Addis Ababa",
    "Ghana": "Accra",
    "Nigeria": "Abuja",
    "Senegal": "Dakar",
    "Namibia": "Windhoek",
    "Malawi": "Lilongwe",
    "Bhutan": "Thimphu",
    "Zambia": "Lusaka",
    "Uganda": "Kampala",
    "Mongolia": "Ulaanbaatar",
    "Nepal": "Kathmandu",
    "Laos": "Vientiane",
    "Latvia": "Riga",
    "Estonia": "Tallinn",
    "Lithuania": "Vilnius",
    "Slovenia": "Ljubljana",
    "Botswana": "Gaborone",
    "Rwanda": "Kigali",
    "Burkina Faso": "Ouagadougou",
    "Kyrgyzstan": "Bishkek",
    "Tajikistan": "Dushanbe",
    "Suriname": "Paramaribo",
    "Fiji": "Suva",
}
STATE_CAPITALS = {
    "Alabama": "Montgomery",
    "Alaska": "Juneau",
    "Arizona": "Phoenix",
    "Arkansas": "Little Rock",
    "California": "Sacramento",
    "Colorado": "Denver",
    "Connecticut": "Hartford",
    "Delaware": "Dover",
    "Florida": "Tallahassee",
    "Georgia": "Atlanta",
    "Hawaii": "Honolulu",
    "Idaho": "Boise",
    "Illinois": "Springfield",
    "Kansas": "Topeka",
    "Kentucky": "Frankfort",
    "Louisiana": "Baton Rouge",
    "Maine": "Augusta",
    "Michigan": "Lansing",
    "Missouri": "Jefferson City",
    "Montana": "Helena",
    "Nebraska": "Lincoln",
    "Nevada": "Carson City",
    "New Jersey": "Trenton",
    "Oregon": "Salem",
    "South Dakota": "Pierre",
    "Vermont": "Montpelier",
    "Washington": "Olympia",
    "Wyoming": "Cheyenne",
}
FILLERS = [
    "The market in the old harbour opens at six in the morning.",
    "Most of the trains were late because of heavy snow.",
    "A new library with a garden on its roof will open in May.",
    "The soup is cooked with carrots, onions and a little pepper.",
    "Visitors can rent bicycles next to the main station.",
    "The orchestra played two works by young composers.",
    "Several farmers have replaced wheat with sunflowers.",
    "The lake is frozen from December until the end of March.",
    "The school bought thirty new computers for its pupils.",
    "Old maps show a windmill at the edge of the forest.",
]
HELD_OUT_INVENTED_RELATIONS = [
    Relation(
        "How high is the {x} Tower?",
        "The {x} Tower is {v} metres high.",
        (
            "Many visitors climb the {x} Tower. It is open every day. The {x} Tower is {v} metres high.",
            "With a height of {v} metres, the {x} Tower can be seen from the sea. Entry is free.",
        ),
        ("37", "48", "52", "63", "71", "86", "94", "118", "135", "142"),
    ),
    Relation(
        "In which year was the {x} Observatory founded?",
        "The {x} Observatory was founded in {v}.",
        (
            "The {x} Observatory was founded in {v}. Its roof was repaired twice.",
            "Astronomers meet here in summer. The history of the {x} Observatory began in {v}.",
        ),
        ("1743", "1768", "1781", "1826", "1839", "1854", "1867", "1893", "1908", "1927"),
    ),
    Relation(
        "Which instrument does {x} play?",
        "{x} plays the {v}.",
        (
            "The concert was sold out within an hour. {x} plays the {v}.",
            "The {v} is the instrument of {x}. The hall has room for two hundred guests.",
        ),
        ("oboe", "harp", "cello", "trumpet", "flute", "viola", "tuba", "clarinet", "banjo", "lute"),
    ),
    Relation(
        "Which river flows through the town of {x}?",
        "The river {v} flows through the town of {x}.",
        (
            "The town of {x} has a large market. The river {v} flows through the town of {x}.",
            "The town of {x} is on the river {v}. There are three bridges and a mill.",
        ),
    ),
    Relation(
        "Who wrote the novel {x}?",
        "The novel {x} was written by {v}.",
        (
            "The novel {x} was written by {v}. It was translated into nine languages.",
            "Critics were surprised by the last chapter. {v} is the author of the novel {x}.",
        ),
    ),
]
HELD_OUT_KNOWN_RELATION = Relation(
    "In which country is the city of {x}?",
    "The city of {x} is in {v}.",
    (
        "The city of {x} is in {v}. Its airport is being enlarged.",
        "Tourists like the old streets. One of the cities of {v} is {x}.",
    ),
)
COUNTRIES = {
    "Munich": "Germany",
    "Hamburg": "Germany",
    "Milan": "Italy",
    "Naples": "Italy",
    "Turin": "Italy",
    "Lyon": "France",
    "Marseille": "France",
    "Bordeaux": "France",
    "Barcelona": "Spain",
    "Seville": "Spain",
    "Valencia": "Spain",
    "Osaka": "Japan",
    "Kyoto": "Japan",
    "Sapporo": "Japan",
    "Shanghai": "China",
    "Chengdu": "China",
    "Mumbai": "India",
    "Chennai": "India",
    "Kolkata": "India",
    "Toronto": "Canada",
    "Calgary": "Canada",
    "Sydney": "Australia",
    "Perth": "Australia",
    "Adelaide": "Australia",
    "Krakow": "Poland",
    "Gdansk": "Poland",
    "Porto": "Portugal",
    "Gothenburg": "Sweden",
    "Bergen": "Norway",
    "Aarhus": "Denmark",
    "Tampere": "Finland",
    "Geneva": "Switzerland",
    "Basel": "Switzerland",
    "Salzburg": "Austria",
    "Graz": "Austria",
    "Antwerp": "Belgium",
    "Rotterdam": "Netherlands",
    "Izmir": "Turkey",
    "Karachi": "Pakistan",
    "Lahore": "Pakistan",
    "Busan": "South Korea",
    "Mombasa": "Kenya",
    "Casablanca": "Morocco",
    "Alexandria": "Egypt",
    "Durban": "South Africa",
    "Lagos": "Nigeria",
    "Guadalajara": "Mexico",
    "Medellín": "Colombia",
    "Arequipa": "Peru",
    "Valparaíso": "Chile",
    "Rosario": "Argentina",
    "Brno": "Czech",
    "Debrecen": "Hungary",
    "Kharkiv": "Ukraine",
    "Plovdiv": "Bulgaria",
    "Aleppo": "Syria",
    "Tampa": "United States",
    "Kumasi": "Ghana",
    "Bandung": "Indonesia",
    "Da Nang": "Vietnam",
    "Bergamo": "Italy",
    "Kazan": "Russia",
    "Maribor": "Slovenia",
    "Košice": "Slovakia",
    "Split": "Croatia",
    "Novi Sad": "Serbia",
    "Lviv": "Ukraine",
    "Tartu": "Estonia",
    "Kaunas": "Lithuania",
    "Bursa": "Turkey",
    "Isfahan": "Iran",
    "Basra": "Iraq",
    "Fez": "Morocco",
    "Oran": "Algeria",
    "Kano": "Nigeria",
    "Kisumu": "Kenya",
    "Cebu": "Philippines",
    "Medan": "Indonesia",
    "Surat": "India",
    "Sylhet": "Bangladesh",
    "Kandy": "Sri Lanka",
    "Cusco": "Peru",
    "Cali": "Colombia",
    "Mendoza": "Argentina",
    "Recife": "Brazil",
    "Guayaquil": "Ecuador",
}
HELD_OUT_FILLERS = [
    "The post office moved to a new building. It has longer opening hours now.",
    "Two teams reached the final of the chess tournament. It lasts until Sunday.",
    "Beekeepers sell honey in front of the town hall. The first jars were gone by noon.",
    "A lost suitcase was found at the tram stop. It contained only newspapers.",
    "Engineers are testing an electric ferry. It is quieter than the old one.",
    "Students painted the underpass. The colours were a gift from a local shop.",
    "The bakery tried a recipe with walnuts. Most customers liked it.",
    "Heavy rain filled the reservoir. Watering gardens is allowed again.",
]


@dataclass(frozen=True)
class StatementSet:
    """Relations, facts and fillers from which statements are planted.

    Attributes:
        invented_relations: Relations of invented facts.
        known_relation: Relation of facts that the model may know.
        known_facts: Value of each subject of the known relation.
        fillers: Passages without a fact.
        has_own_words: Whether the statement is the sentence that the model generates from the passages.
    """

    invented_relations: Sequence[Relation]
    known_relation: Relation
    known_facts: dict[str, str]
    fillers: Sequence[str]
    has_own_words: bool


STATEMENT_SETS = {
    "tuning": StatementSet(
        INVENTED_RELATIONS,
        KNOWN_RELATION,
        CAPITALS | STATE_CAPITALS,
        FILLERS,
        has_own_words=False,
    ),
    "held-out": StatementSet(
        HELD_OUT_INVENTED_RELATIONS,
        HELD_OUT_KNOWN_RELATION,
        COUNTRIES,
        HELD_OUT_FILLERS,
        has_own_words=True,
    ),
}
"""Statements by which the thresholds were chosen, and others."""
SYLLABLES = [
    "bal",
    "bren",
    "cor",
    "dal",
    "dor",
    "fen",
    "gar",
    "hol",
    "kel",
    "lin",
    "mar",
    "mor",
    "nel",
    "or",
    "pel",
    "quin",
    "ros",
    "sel",
    "tam",
    "tor",
    "ul",
    "vel",
    "wen",
    "zor",
]
N_SAMPLES = 8
"""Number of sampled continuations without passages, which show whether a fact is half known."""
N_VALUE_TOKENS = 6
"""Length of each continuation, in tokens, which is enough for the longest value."""


@dataclass(frozen=True)
class Case:
    """A planted statement.

    Attributes:
        kind: Its type, see the module's documentation.
        passages: The passages.
        question: The question.
        statement: The statement.
        value: The value in the statement.
        right: Numbers of the passages that contain the fact.
        wrong: Number of the competitor or of a filler.
        has_markers: Whether the answer cites passages.
    """

    kind: str
    passages: list[str]
    question: str
    statement: str
    value: str
    right: list[int]
    wrong: int
    has_markers: bool

    @property
    def answer(self) -> str:
        """The answer with markers; a repeated fact is stated twice."""
        numbers = [*self.right, self.wrong] if self.has_markers else []
        marker = f" [{', '.join(map(str, sorted(numbers)))}]" if numbers else ""
        sentence = f"{self.statement.removesuffix('.')}{marker}."
        return f"{sentence} {sentence}" if self.kind == "repeated" else sentence


def make_name(rng: random.Random, n_words: int = 1) -> str:
    """Make an invented name, such as "Kelmor" or "Kelmor Dalvel"."""
    return " ".join("".join(rng.sample(SYLLABLES, 2)).capitalize() for _ in range(n_words))


def make_case(
    kind: str,
    relation: Relation,
    subject: str,
    value: str,
    rng: random.Random,
    index: int,
    fillers: Sequence[str],
    **fields: Any,
) -> Case:
    """Plant a fact in five passages in random order."""
    n_right = {"twice": 2, "nowhere": 0, "known elsewhere": 0}.get(kind, 1)
    wordings = rng.sample(relation.passages, 2)
    competitor = fields["competitor"]
    right = [wording.format(x=subject, v=value) for wording in wordings[:n_right]]
    wrong = rng.choice(relation.passages).format(x=competitor[0], v=competitor[1])
    passages = [*right, wrong, *rng.sample(fillers, 4 - n_right)]
    rng.shuffle(passages)
    statement = fields.get("statement") or relation.statement.format(x=subject, v=value)
    # Every second wrong citation is a filler.
    filler = next(passage for passage in passages if passage in fillers)
    return Case(
        kind=kind,
        passages=passages,
        question=relation.question.format(x=subject),
        statement=statement,
        value=value,
        right=[passages.index(passage) + 1 for passage in right],
        wrong=passages.index(wrong if index % 2 == 0 or n_right == 0 else filler) + 1,
        has_markers=index % 3 != 2,
    )


def draw_invented_fact(relation: Relation, rng: random.Random) -> tuple[str, str, tuple[str, str]]:
    """Draw a subject, a value, and the subject and the value of a competitor."""
    subject, other = make_name(rng), make_name(rng)
    if any(word in relation.question for word in ("born", "dog", "play")):
        subject, other = make_name(rng, 2), make_name(rng, 2)
    if relation.values:
        value, other_value = rng.sample(relation.values, 2)
    else:
        has_two_words = any(word in relation.question for word in ("director", "wrote"))
        value, other_value = (make_name(rng, 1 + has_two_words) for _ in range(2))
    return subject, value, (other, other_value)


def make_cases(
    model: Any, tokenizer: Any, statements: StatementSet, seed: int, scale: float
) -> list[Case]:
    """Make all planted statements."""
    relations, known_relation = statements.invented_relations, statements.known_relation
    facts, fillers = statements.known_facts, statements.fillers
    rng = random.Random(seed)
    cases = []
    for kind, count in {"invented": 28, "twice": 20, "nowhere": 14, "repeated": 6}.items():
        for index in range(round(count * scale)):
            relation = relations[index % len(relations)]
            subject, value, competitor = draw_invented_fact(relation, rng)
            case = make_case(
                kind, relation, subject, value, rng, index, fillers, competitor=competitor
            )
            cases.append(case)
    subjects = rng.sample(sorted(facts), round(min(scale, 1) * len(facts)))
    greedy_answers = dict(
        zip(
            subjects,
            answer_questions(
                model, tokenizer, [known_relation.question.format(x=name) for name in subjects]
            ),
            strict=True,
        )
    )
    known = [name for name in subjects if facts[name] in greedy_answers[name]]
    others = [name for name in subjects if name not in known]
    half_known = [
        name
        for name in others
        if is_half_known(model, tokenizer, known_relation, name, facts[name], seed)
    ]
    print(f"known facts: {len(known)} known, {len(half_known)} half known, {len(others)} others")
    n_elsewhere = round(6 * scale)
    groups = {
        "known elsewhere": known[:n_elsewhere],
        "known": known[n_elsewhere : n_elsewhere + round(20 * scale)],
        "half known": half_known[: round(24 * scale)],
    }
    for kind, names in groups.items():
        for index, name in enumerate(names):
            other = rng.choice([other for other in subjects if other != name])
            statement = None
            if kind != "half known":
                answer = greedy_answers[name].strip()
                start, end = locate_sentences(answer)[0]
                statement = answer[start:end] if facts[name] in answer[start:end] else None
            cases.append(
                make_case(
                    kind,
                    known_relation,
                    name,
                    facts[name],
                    rng,
                    index,
                    fillers,
                    competitor=(other, facts[other]),
                    statement=statement,
                )
            )
    return cases


def encode_question(tokenizer: Any, question: str, passages: Sequence[str] = ()) -> list[int]:
    """Tokenize a question with numbered passages, as ``cite`` does."""
    bodies = [f"[{k}] {passage}" for k, passage in enumerate(passages, 1)]
    row = {"example_id": 0, "text": "\n\n".join(bodies), "passages": bodies, "question": question}
    template = None if passages else "{context}{question}"
    prompt = render_prompt(row, Answers([{}], template=template), tokenizer)
    return tokenize_prompt(tokenizer, prompt.text, prompt)[0]


def answer_questions(
    model: Any, tokenizer: Any, questions: Sequence[str], passages: Sequence[Sequence[str]] = ()
) -> list[str]:
    """Generate greedy answers, by default without passages."""
    lists = passages or [()] * len(questions)
    prompts = {
        str(k): encode_question(tokenizer, question, listed)
        for k, (question, listed) in enumerate(zip(questions, lists, strict=True))
    }
    answers = generate_answers(model, tokenizer, prompts, 24)
    return [decode_tokens(tokenizer, answers[name]) for name in prompts]


def is_half_known(
    model: Any, tokenizer: Any, relation: Relation, subject: str, value: str, seed: int
) -> bool:
    """Check whether a model sometimes writes a value, but not by greedy decoding, without passages.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
        relation: Relation of the subject and the value. The model continues the beginning of its
            statement, up to the value.
        subject: The subject.
        value: The value.
        seed: Seed for the sampled continuations.
    """
    beginning = relation.statement.split("{v}")[0].rstrip().format(x=subject)
    space = "" if tokenizer.chat_template else " "
    ids = [
        *encode_question(tokenizer, relation.question.format(x=subject)),
        *tokenizer(space + beginning, add_special_tokens=False)["input_ids"],
    ]
    torch.manual_seed(seed)
    writes_value = []
    for settings in (
        {"do_sample": False},
        {"do_sample": True, "temperature": 1.0, "top_k": 0, "num_return_sequences": N_SAMPLES},
    ):
        outputs = model.generate(
            torch.tensor([ids]),
            max_new_tokens=N_VALUE_TOKENS,
            pad_token_id=tokenizer.eos_token_id,
            **settings,
        )
        continuations = [decode_tokens(tokenizer, row[len(ids) :].tolist()) for row in outputs]
        writes_value.append(any(text.strip().startswith(value) for text in continuations))
    is_greedy, is_sampled = writes_value
    return is_sampled and not is_greedy


def use_own_words(case: Case, generated: str) -> Case:
    """Replace the statement by the first generated sentence, if it contains the value.

    A statement that no passage contains, and a fact that is known or half known, keep their words.
    """
    if case.kind not in ("invented", "twice", "repeated") or case.value not in generated:
        return case
    start, end = locate_sentences(generated)[0]
    sentence = generated[start:end].strip()
    return replace(case, statement=sentence) if case.value in sentence else case


TRUE_USES = {
    "invented": ("used", "another source was used"),
    "twice": ("used", "another source was used"),
    "repeated": ("used", "another source was used"),
    "nowhere": (None, "unused"),
    "known": ("known anyway", "known anyway"),
    "known elsewhere": (None, "known anyway"),
}
"""Correct classes of the right and of the wrong citation, by type of statement."""


def list_results(case: Case, statement: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List marker type, true class and class by ``cite`` for each citation of a statement."""
    uses = {entry["passage"]: entry["use"] for entry in statement["passages"]}
    right_use, wrong_use = TRUE_USES[case.kind]
    if case.has_markers:
        results = [("right", right_use, uses[number]) for number in case.right]
        return [*results, ("wrong", wrong_use, uses[case.wrong])]
    expected = sorted(case.right)
    if right_use == "used":
        named = "used" if statement["used"] == expected else f"named {statement['used']}"
        return [("missing", "used", named)]
    return [("missing", wrong_use, uses[case.wrong])]


def format_share(hits: int, n: int) -> str:
    """Format a share with its Wilson interval."""
    if not n:
        return "–"
    interval = binomtest(hits, n).proportion_ci(method="wilson")
    return f"{hits / n:.3f} ({hits}/{n}) [{interval.low:.2f}, {interval.high:.2f}]"


def print_results(records: list[dict[str, Any]]) -> None:
    """Print the accuracy by class and by type, and all errors."""
    for title, counted in (
        ("if the model would write the statement", [r for r in records if r["is_written"]]),
        ("all statements", records),
    ):
        results = [
            (record["kind"], *result)
            for record in counted
            for statement in record["results"]
            for result in statement
        ]
        decided = [r for r in results if r[3] != "cannot say"]
        print(f"\n{title}: {len(results)} citations of {len(counted)} statements")
        print(f"  decided: {format_share(len(decided), len(results))}")
        groups: dict[str, list[Any]] = {"all decided": decided}
        groups["used, other, unused"] = [r for r in decided if r[2] != "known anyway"]
        for use in ("used", "another source was used", "unused", "known anyway"):
            groups[use] = [r for r in decided if r[2] == use]
        for kind in TRUE_USES:
            groups[kind] = [r for r in decided if r[0] == kind]
        for marker in ("right", "wrong", "missing"):
            groups[f"{marker} marker"] = [r for r in decided if r[1] == marker]
        for name, group in groups.items():
            print(f"  {name:26s} {format_share(sum(r[2] == r[3] for r in group), len(group))}")
        confusion = Counter((truth, use) for _, _, truth, use in results if truth != use)
        print("  errors and undecided (truth, result, count)")
        for (truth, use), count in confusion.most_common():
            kinds = Counter(r[0] for r in results if r[2:] == (truth, use))
            print(f"    {truth:24s} {use:24s} {count:3d}  {dict(kinds)}")


def print_agreement(model: Any, tokenizer: Any, path: Path) -> None:
    """Print how often ``cite`` names the same passages as a reader.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
        path: JSON Lines file with the keys passages, question and statements, see
            ``judged_statements.jsonl``.
    """
    judged_rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [
        {
            "passages": row["passages"],
            "question": row["question"],
            # Each statement is a line, so that it is not split or joined with the next one.
            "answer": "\n".join(statement["text"] for statement in row["statements"]),
        }
        for row in judged_rows
    ]
    report = cite(model, tokenizer, rows, progress=False)
    statements = [
        statement
        for answer in json.loads(report.to_json())["answers"]
        for statement in answer["statements"]
    ]
    judgements = [judgement for row in judged_rows for judgement in row["statements"]]
    outcomes = []
    for statement, judgement in zip(statements, judgements, strict=True):
        named = set(statement["used"])
        is_undecided = not named and statement["passages"][0]["use"] == "cannot say"
        sources, possible_sources = set(judgement["sources"]), set(judgement["possible_sources"])
        agrees = sources <= named <= possible_sources
        outcome = "undecided" if is_undecided else "agrees" if agrees else "differs"
        outcomes.append(("from passages" if sources else "from no passage", outcome))
        if outcome != "agrees":
            print(f"{outcome}: {statement['text']!r}: reader {judgement}, cite {sorted(named)}")
    print(f"\n{len(outcomes)} statements: {dict(Counter(outcomes))}")
    decided = [outcome for _, outcome in outcomes if outcome != "undecided"]
    print(f"agreement of the decided: {format_share(decided.count('agrees'), len(decided))}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gguf-file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--statements", choices=STATEMENT_SETS, default="tuning")
    parser.add_argument("--judged", type=Path, help="file with statements that a reader has judged")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    options = {"gguf_file": arguments.gguf_file} if arguments.gguf_file else {}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, **options)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, **options
    ).eval()
    if arguments.judged:
        print_agreement(model, tokenizer, arguments.judged)
        return
    start = time.process_time()
    statements = STATEMENT_SETS[arguments.statements]
    cases = make_cases(model, tokenizer, statements, arguments.seed, arguments.scale)
    written = answer_questions(
        model,
        tokenizer,
        [case.question for case in cases],
        [case.passages for case in cases],
    )
    if statements.has_own_words:
        cases = [use_own_words(case, text) for case, text in zip(cases, written, strict=True)]
    print(f"{len(cases)} answers planted in {time.process_time() - start:.0f} CPU s")
    rows = [
        {"passages": case.passages, "question": case.question, "answer": case.answer}
        for case in cases
    ]
    start = time.process_time()
    report = cite(model, tokenizer, rows, progress=False)
    seconds = time.process_time() - start
    answers = json.loads(report.to_json())["answers"]
    n_statements = sum(len(answer["statements"]) for answer in answers)
    print(f"{n_statements} statements in {seconds:.0f} CPU s, {seconds / n_statements:.2f} s each")
    records = []
    half_known: Counter[str] = Counter()
    for case, answer, greedy in zip(cases, answers, written, strict=True):
        record = {"kind": case.kind, "right": case.right, "wrong": case.wrong, **answer}
        record["has_markers"], record["greedy"] = case.has_markers, greedy
        # The model need not write a nowhere statement, since no passage contains it.
        record["is_written"] = case.kind == "nowhere" or case.value in greedy
        if case.kind == "half known":
            entries = answer["statements"][0]["passages"]
            half_known[entries[case.right[0] - 1]["use"]] += 1
            record["results"] = []
        else:
            record["results"] = [list_results(case, s) for s in answer["statements"]]
        records.append(record)
    if arguments.output:
        arguments.output.write_text(json.dumps(records, ensure_ascii=False, indent=1))
    print_results([record for record in records if record["kind"] != "half known"])
    print(f"\nhalf known facts, class of the passage that contains them: {dict(half_known)}")
    dependent = [
        statement for record in records for statement in record["statements"] if statement["used"]
    ]
    agreeing = np.array([s["attended_passage"] in s["used"] for s in dependent])
    print(
        f"attention ranks a used passage first: {format_share(int(agreeing.sum()), len(agreeing))}"
    )


if __name__ == "__main__":
    main()
