"""Makes tests/data/text/mixed.txt: 330 KB of text that tokenizers get wrong.

Prose of the public domain in many scripts, code, every kind of white space, control characters, emoji joined by U+200D,
combining marks in and out of order, a sample of all of Unicode 14, and very long runs. Seeded: the same bytes every time.
Usage: python3 make_mixed_text.py > ../data/text/mixed.txt   (Python 3.11, whose unicodedata is Unicode 14)
"""
import pathlib
import random
import sys
import unicodedata

TOP = pathlib.Path(__file__).resolve().parents[2]

PROSE = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the face of the deep.
It's a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. We've, I'd, they're, you'll, I'M, IT'S, WE'LL, 'tis.
Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.
У лукоморья дуб зелёный; златая цепь на дубе том: и днём и ночью кот учёный всё ходит по цепи кругом.
道可道，非常道。名可名，非常名。無名天地之始；有名萬物之母。故常無欲，以觀其妙；常有欲，以觀其徼。
学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？
吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。
いろはにほへと　ちりぬるを　わかよたれそ　つねならむ　ｶﾀｶﾅ　ＡＢＣ１２３
بِسْمِ اللَّهِ الرَّحْمَٰنِ الرَّحِيمِ الْحَمْدُ لِلَّهِ رَبِّ الْعَالَمِينَ ١٢٣٤٥
בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם וְאֵת הָאָרֶץ
धर्मक्षेत्रे कुरुक्षेत्रे समवेता युयुत्सवः । मामकाः पाण्डवाश्चैव किमकुर्वत सञ्जय ॥ १२३
μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος οὐλομένην, ἣ μυρί᾽ Ἀχαιοῖς ἄλγε᾽ ἔθηκε
나랏말ᄊᆞ미 듕귁에 달아 문자와로 서르 사맛디 아니할쎄
Trăm năm trong cõi người ta, chữ tài chữ mệnh khéo là ghét nhau.
Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind; Straße, STRASSE, Größe.
Longtemps, je me suis couché de bonne heure. L'œuvre d'été n'était qu'à moitié achevée.
ไก่จิกเด็กตายบนปากโอ่ง İstanbul'da ışık ILIK ılık ǅ ǆ Ǆ ﬁ ﬃ ſ 'ſ 's 'K K
"""

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇯🇵🇫🇷", "1️⃣", "👨🏿‍🚀", "❤️‍🔥", "☺", "☺️", "🧑‍🤝‍🧑", "\u200d", "\ufe0f", "🏴\U000e0067\U000e0062\U000e007f"]
SPACES = ["\t", "\n", "\v", "\f", "\r", " ", "\x85", "\xa0", "\u1680", "\u180e", *map(chr, range(0x2000, 0x200C)), "\u2028", "\u2029",
          "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\r\n", "\n\n", "  ", "\n\r", " \n ", "\t\t"]
SPELLED = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "[INST]", "<0x0A>",
           "<tool>", "<start_of_turn>", "▁", "Ġ", "##ing", "<|", "|>"]

CODE = """for (int i = 0; i < {n}; ++i) {{\n\tsum += a[i] * 0x{h:x}u;  // {w}\r\n}}\n
def {w}_{n}(self, x: "int" = {n}) -> None:\n    \"\"\"{w}'s.\"\"\"\n    return x**2 if x != {n} else {{'{w}': [{n}, None]}}\n
SELECT {w}, COUNT(*) FROM t{n} WHERE a >= {n}.{n}e-{n} AND b LIKE '%{w}%';\n
<div class="{w}" style='width:{n}px'>&nbsp;{w}&#{n};</div>\n
{{"{w}": {n}, "{h:x}": [true, null, -{n}.5e+3, "\\u00e9\\n"]}}\n
$ ls -la ./{w}/{n}/*.cc | grep -E '^[a-z]+\\s+{n}' && echo "$?"\n
camelCase{n}HTTPServer ALL_CAPS_{n} aBaBaB iPhone{n}Pro x86_64 {h:032x}\n"""


def letters(first, last):
    return [chr(c) for c in range(first, last) if unicodedata.category(chr(c))[0] in "LMN"]


def words(rng, alphabet, count):
    return ["".join(rng.choices(alphabet, k=min(rng.randint(1, 12), rng.randint(1, 12)))) for _ in range(count)]


def soup(rng, size):
    """Words of one script after another, with odd white space and punctuation between them."""
    scripts = [letters(0x41, 0x7B), letters(0x61, 0x7B), letters(0x30, 0x3A), letters(0xC0, 0x250), letters(0x370, 0x400),
               letters(0x400, 0x500), letters(0x5D0, 0x5EB), letters(0x620, 0x670), letters(0x900, 0x980), letters(0xE01, 0xE3B),
               letters(0x3041, 0x3100), letters(0x4E00, 0x9FA6), letters(0xAC00, 0xD7A4), letters(0x300, 0x370)]
    punctuation = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "'s", "'LL", "--", "::", "//", "。", "，", "«", "—", "…", "¿", "€", "²", "½", "Ⅷ"]
    out = []
    while sum(map(len, out)) < size:
        for word in words(rng, rng.choice(scripts), rng.randint(1, 6)):
            out += [word, rng.choice([" ", " ", " ", "", rng.choice(SPACES), rng.choice(punctuation), rng.choice(punctuation) + " ",
                                      rng.choice(SPACES) * rng.randint(1, 5)])]
    return "".join(out)


def sample_of_unicode(rng):
    """Every 5th assigned character below U+30000 outside of the big ideograph blocks, every 500th inside, between letters and spaces."""
    out = []
    for code in range(0x30000):
        char = chr(code)
        big = 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xD7A4 or 0x17000 <= code < 0x18D00 or code >= 0x20000
        if unicodedata.category(char) in ("Cn", "Cs", "Co") or code % (500 if big else 5):
            continue
        # The oracle's normaliser does not know the marks that Unicode 11 and later brought there, and leaves them unordered.
        if code >= 0x10D00 and unicodedata.combining(char):
            continue
        out.append(rng.choice(["", " ", "a", "Z9", "\n", " x", ""]) + char)
    return "".join(out)


def runs():
    units = [("a", 3000), (" ", 3000), ("\n", 1500), ("!?", 1000), ("aBaB", 700), ("7", 3000), ("\t", 1000), ("\r\n", 700), ("漢", 700),
             ("ab", 1500), (" a", 1000), ("\u0301", 400), ("é", 600), ("😀", 300), ("\u3000", 300), ("\xa0", 300), ("=", 2000), ("-=", 600),
             ("_", 900), ("👩‍👩‍👧‍👦", 60), ("\u200d", 200), ("ab ", 700), ("\x00", 300), ("'s", 300), ("A", 1000), ("का", 300)]
    return "".join(unit * count + "\nx" for unit, count in units)


def mixed_text():
    rng = random.Random(20)
    prose = [PROSE, PROSE.upper(), unicodedata.normalize("NFD", PROSE), PROSE.title().replace(" ", "  "), PROSE.replace("\n", "\r\n")]
    code = "".join(CODE.format(n=rng.randint(0, 10**rng.randint(1, 9)), w="".join(rng.choices("abcdefghij", k=7)), h=rng.getrandbits(64))
                   for _ in range(25))
    marks = "".join(rng.choice("aeiouAEIOUकग") + "".join(rng.choices("\u0301\u0316\u0323\u0308\u0327\u0345\u094d\u093c\u1dce", k=rng.randint(1, 5)))
                    for _ in range(400))
    spaces = "".join(f"{a}{b}x{b}{a}{a}.{b}" for a in SPACES for b in SPACES[::3])
    emoji = "".join(rng.choice(EMOJI) + rng.choice(["", " ", "a", "\n", "!"]) for _ in range(900))
    controls = "".join(f"{chr(c)}{rng.choice(['', 'a', ' ', '1'])}" for c in [*range(0x20), *range(0x7F, 0xA1)] * 8)
    spelled = "".join(rng.choice(SPELLED) + rng.choice(["", " ", "\n", "user", "  "]) for _ in range(300))
    files = [(TOP / "models/longneedle" / name).read_text() for name in ("train.py", "sparse_eval.py")]
    return "".join([*prose, code, *files, spaces, controls, emoji, marks, spelled, soup(rng, 90000), sample_of_unicode(rng), runs()])


if __name__ == "__main__":
    sys.stdout.buffer.write(mixed_text().encode())
