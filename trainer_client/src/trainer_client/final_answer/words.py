"""The words with which responses announce a final answer, in many languages, and the patterns made of them.

A new language is a new row of `LANGUAGES`. Patterns read text in lower case (`lowered`), in NFC or NFD, and take time
linear in its length.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple


class _Language(NamedTuple):
    """Words of one language, in lower case and separated by `|`.

    Attributes:
        answer: nouns that mean "answer".
        final: words for "final", beside such a noun.
        beside: articles and other adjectives before or after the noun, such as "the" and "correct".
        verb: what joins the noun and the answer, such as "is".
        ending: what may follow the answer, such as a verb at the end of the sentence.
        so: what a concluding sentence begins with.
        because: what begins a reason after the answer.
        solution: nouns that announce an answer or a worked solution.
        wrong: what begins a sentence that takes an answer back.
        wait: what begins a sentence that may do so.
    """

    answer: str
    final: str = ""
    beside: str = ""
    verb: str = ""
    ending: str = ""
    so: str = ""
    because: str = ""
    solution: str = ""
    wrong: str = ""
    wait: str = ""


LANGUAGES = {
    "English": _Language(
        answer="answer|answers|ans|ans.",
        final="final|ultimate|concluding|definitive",
        beside="the|my|our|your|this|correct|right|exact|overall|numerical|numeric|desired|required|simplified|complete"
        "|short|best|resulting|revised|corrected|updated|full|choice|option|letter|value",
        verb="is|are|was|must be|should be|will be|would be|equals|is equal to|turns out to be|comes out to be|comes to"
        "|becomes",
        so="so|thus|hence|therefore|finally|consequently|accordingly|in conclusion|in summary|overall|and so|and|then"
        "|which means|which means that|this means|this means that"
        "|we conclude that|we find that|we see that|it follows that"
        "|i think|i believe|i conclude that|i think that|i believe that|now|ok|okay|great|yes"
        "|wait|oh wait|but wait|hold on|actually|no,|sorry,",
        because="because|due to",
        solution="solution|result|output",
    ),
    "Chinese": _Language(
        answer="答案|答",
        final="最终|最終|最后的|最後的|最后|最後",
        beside="正确|正確|正确的|正確的|本题|本題|的|选项|選項|应该|應該|应|應",
        verb="是|为|為|等于|等於|选|選|应为|應為|就是",
        so="所以|因此|故|故而|于是|於是|那么|那麼|综上所述|綜上所述|综上|綜上|从而|可得|得|得出|即|则|則|由此|最后|最後",
        because="因为|因為|由于|由於",
        solution="解答|解|结果|結果|结论|結論",
        wrong="不对|不對|错了|錯了|这是错的|更正",
        wait="等等|等一下",
    ),
    "Spanish": _Language(
        answer="respuesta|respuestas",
        final="final|definitiva",
        beside="la|las|el|mi|nuestra|correcta|exacta|opción",
        verb="es|son|sería|será|debe ser|es igual a",
        so="por lo tanto|por tanto|entonces|así|así que|luego|en conclusión|finalmente|por consiguiente|y",
        because="porque|ya que|puesto que|debido a",
        solution="solución|resultado",
        wrong="me equivoqué|corrección|eso es falso|es incorrecto",
        wait="espera|espere",
    ),
    "Hindi": _Language(
        answer="उत्तर|जवाब",
        final="अंतिम|अन्तिम|आखिरी",
        beside="सही|का|आपका|मेरा|यह",
        verb="है|हैं|होगा",
        ending="है|हैं|होगा|होगी",
        so="इसलिए|अतः|तो|इस प्रकार|अत:",
        because="क्योंकि",
        solution="हल|परिणाम",
    ),
    "Arabic": _Language(
        answer="الإجابة|الاجابة|الجواب|إجابة|اجابة|جواب",
        final="النهائية|النهائي|نهائية|نهائي",
        beside="الصحيحة|الصحيح|هذه|هذا",
        verb="هي|هو|تساوي|يساوي",
        so="لذلك|إذن|إذا|وبالتالي|بالتالي|لذا|إذًا|ومن ثم|فإن|و",
        because="لأن|لأنه|لأنها",
        solution="الحل|النتيجة",
        wrong="لا،|هذا خطأ|تصحيح",
        wait="انتظر",
    ),
    "Portuguese": _Language(
        answer="resposta|respostas",
        final="final|definitiva",
        beside="a|as|minha|nossa|correta|certa|exata|opção",
        verb="é|são|será|deve ser|é igual a",
        so="portanto|logo|assim|então|por isso|em conclusão|finalmente|dessa forma|e",
        because="porque|pois|já que|uma vez que",
        solution="solução|resultado",
        wrong="não,|não.|correção|está errado|isso está errado",
        wait="espere",
    ),
    "Bengali": _Language(
        answer="উত্তর|জবাব",
        final="চূড়ান্ত|শেষ",
        beside="সঠিক|এর",
        verb="হল|হলো|হচ্ছে|হবে",
        ending="হল|হলো|হবে",
        so="তাই|অতএব|সুতরাং|অতঃপর",
        because="কারণ",
        solution="সমাধান|ফলাফল",
    ),
    "Russian": _Language(
        answer="ответ",
        final="окончательный|итоговый|финальный|конечный",
        beside="правильный|верный|мой|наш|точный|на вопрос|на задачу|этот",
        verb="это|есть|равен|будет|является|—|–",
        so="итак|следовательно|таким образом|значит|поэтому|тогда|и|отсюда",
        because="потому что|так как|поскольку|ибо",
        solution="решение|результат",
        wrong="нет,|нет.|неверно|это неверно|я ошибся|исправление",
        wait="подождите|подожди",
    ),
    "Japanese": _Language(
        answer="答え|答|回答|こたえ|正解|答案",
        final="最終的な|最終的|最終|最後の",
        beside="正しい|この問題の|問題の|の",
        verb="は|が",
        ending="です|である|でした|だ|となります|になります|となる|になる",
        so="したがって|従って|よって|ゆえに|だから|つまり|以上より|すなわち|これより|結論として",
        because="なぜなら",
        solution="解答|解|結果|結論",
        wrong="いや|違う|違います|間違えました|訂正",
        wait="待って|ちょっと待って",
    ),
    "German": _Language(
        answer="antwort|antworten|endergebnis",
        final="endgültige|finale|abschließende|letzte",
        beside="die|das|meine|unsere|richtige|korrekte|exakte|genaue|gesuchte",
        verb="ist|sind|lautet|wäre|beträgt",
        so="also|daher|somit|folglich|deshalb|damit|demnach|schließlich|und|deswegen",
        because="weil|denn|da",
        solution="lösung|ergebnis|resultat",
        wrong="nein|falsch|das ist falsch|das stimmt nicht|korrektur|ich habe mich geirrt|ich habe mich verrechnet",
        wait="warte|moment,|moment mal",
    ),
    "French": _Language(
        answer="réponse|réponses",
        final="finale|définitive",
        beside="la|les|ma|notre|bonne|correcte|exacte|option",
        verb="est|sont|serait|sera|est donc|est égale à",
        so="donc|ainsi|alors|par conséquent|finalement|en conclusion|d'où|d’où|et",
        because="parce que|parce qu'|car|puisque|puisqu'",
        solution="solution|résultat",
        wrong="non|c'est faux|c’est faux|je me suis trompé|rectification",
        wait="attends|attendez",
    ),
    "Korean": _Language(
        answer="답|정답|답변|해답|대답",
        final="최종|최종적인|마지막",
        beside="올바른|정확한|맞는|이 문제의|문제의|의",
        verb="은|는|이|가",
        ending="입니다|이다|이에요|예요|임|이 됩니다|이 된다|가 됩니다|가 된다",
        so="따라서|그러므로|그래서|즉|결국|결론적으로",
        because="왜냐하면",
        solution="풀이|결과",
        wrong="아니,|아니요|틀렸어|틀렸습니다|정정",
        wait="잠깐|잠깐만",
    ),
    "Italian": _Language(
        answer="risposta|risposte",
        final="finale|definitiva",
        beside="la|le|mia|nostra|corretta|esatta|giusta|opzione",
        verb="è|sono|sarà|deve essere|è uguale a|e'",
        so="quindi|perciò|dunque|pertanto|infine|in conclusione|allora|e",
        because="perché|poiché|dato che",
        solution="soluzione|risultato",
        wrong="anzi|è sbagliato|mi sono sbagliato|correzione",
        wait="aspetta",
    ),
    "Turkish": _Language(
        answer="cevap|cevabı|cevabımız|yanıt|yanıtı",
        final="nihai|son|kesin",
        beside="doğru|sorunun|problemin",
        ending="'tür|'tir|'dır|'dir|'dur|'dür|'tur|'tır|’tür|’tir|’dır|’dir|’dur|’dür|’tur|’tır|olur|olacaktır",
        so="bu nedenle|dolayısıyla|öyleyse|o halde|sonuç olarak|bu yüzden|yani|böylece",
        because="çünkü",
        solution="çözüm|sonuç",
        wrong="hayır|bu yanlış",
        wait="bekle",
    ),
    "Vietnamese": _Language(
        answer="đáp án|đáp số|câu trả lời|trả lời|đs",
        final="cuối cùng|chung cuộc",
        beside="đúng|chính xác|của bài toán|của câu hỏi",
        verb="là|bằng|sẽ là",
        so="vậy|do đó|vì vậy|vì thế|nên|suy ra|cuối cùng|tóm lại",
        because="vì|bởi vì",
        solution="kết quả|lời giải",
        wrong="không,|sai rồi",
        wait="chờ đã",
    ),
    "Indonesian and Malay": _Language(
        answer="jawaban|jawapan|jawabannya|jawab",
        final="akhir|terakhir|muktamad",
        beside="yang|benar|tepat|betul|anda|saya|untuk soal ini",
        verb="adalah|ialah|yaitu|yakni",
        so="jadi|maka|oleh karena itu|dengan demikian|oleh itu|sehingga",
        because="karena|sebab|kerana",
        solution="hasil|solusi|penyelesaian",
    ),
    "Polish": _Language(
        answer="odpowiedź|odp.|odp",
        final="ostateczna|końcowa|finalna",
        beside="prawidłowa|poprawna|właściwa|moja",
        verb="to|jest|brzmi|wynosi",
        so="więc|zatem|czyli|stąd|dlatego|a więc|tak więc|ostatecznie",
        because="ponieważ|bo|gdyż",
        solution="rozwiązanie|wynik",
        wrong="nie,|to nieprawda|pomyliłem się",
        wait="czekaj",
    ),
    "Dutch": _Language(
        answer="antwoord|antwoorden|eindantwoord",
        final="uiteindelijke|definitieve|finale|laatste",
        beside="het|mijn|ons|juiste|correcte|goede|exacte",
        verb="is|zijn|luidt|wordt|bedraagt",
        so="dus|daarom|bijgevolg|kortom|en|uiteindelijk",
        because="omdat|want",
        solution="oplossing|resultaat|uitkomst",
        wrong="nee|dat klopt niet|correctie",
        wait="wacht",
    ),
    "Urdu": _Language(
        answer="جواب",
        final="حتمی|آخری",
        beside="درست|صحیح|کا|یہ",
        verb="ہے|ہیں|ہوگا",
        ending="ہے|ہیں|ہوگا",
        so="لہذا|لہٰذا|اس لیے|چنانچہ|تو|پس",
        because="کیونکہ",
        solution="حل|نتیجہ",
    ),
    "Persian": _Language(
        answer="پاسخ|جواب",
        final="نهایی",
        beside="صحیح|درست|این",
        verb="برابر است با|عبارت است از|برابر|است",
        ending="است|می‌باشد|میباشد|خواهد بود",
        so="بنابراین|پس|در نتیجه|لذا|از این رو",
        because="زیرا|چون",
        solution="راه حل|نتیجه",
    ),
    "Ukrainian": _Language(
        answer="відповідь",
        final="остаточна|кінцева|фінальна",
        beside="правильна|моя|вірна",
        verb="це|є|дорівнює|—|–",
        so="отже|таким чином|тому|значить",
        because="тому що|оскільки",
        solution="розв'язок|результат",
    ),
    "Thai": _Language(
        answer="คำตอบ|ตอบ",
        final="สุดท้าย|ขั้นสุดท้าย",
        beside="ที่ถูกต้อง|ที่ถูก|คำตอบของ",
        verb="คือ|เท่ากับ|เป็น",
        so="ดังนั้น|เพราะฉะนั้น|สรุป",
        because="เพราะ",
    ),
    "Greek": _Language(
        answer="απάντηση",
        final="τελική",
        beside="η|σωστή",
        verb="είναι",
        so="άρα|επομένως|συνεπώς|οπότε",
        because="επειδή|διότι",
        solution="λύση",
    ),
    "Hebrew": _Language(
        answer="תשובה|התשובה",
        final="סופית|הסופית",
        beside="נכונה|הנכונה",
        verb="היא|הוא",
        so="לכן|ולכן|אז|מכאן",
        because="כי",
    ),
    "Czech and Slovak": _Language(
        answer="odpověď|odpoveď",
        final="konečná|finální|finálna",
        beside="správná|správna|moje",
        verb="je|zní|znie",
        so="tedy|proto|takže|tudíž|preto|teda",
        because="protože|pretože",
        solution="výsledek|výsledok|řešení|riešenie",
    ),
    "Romanian": _Language(
        answer="răspuns|răspunsul",
        final="final",
        beside="corect|este corect",
        verb="este|e",
        so="deci|prin urmare|așadar|astfel",
        because="deoarece|pentru că",
    ),
    "Hungarian": _Language(
        answer="válasz",
        final="végső",
        beside="a|helyes",
        so="tehát|ezért|így",
        because="mert",
    ),
    "Scandinavian": _Language(
        answer="svar|svaret",
        final="slutligt|slutliga|endelig|endelige|endeligt",
        beside="det|rätt|rätta|korrekta|riktig|riktige|korrekt|rigtige|mitt|mit",
        verb="är|er|blir|bliver",
        so="så|alltså|därför|derfor|altså|dermed",
        because="eftersom|därför att|fordi",
    ),
    "Finnish": _Language(
        answer="vastaus", final="lopullinen", beside="oikea", verb="on", so="siis|joten|näin ollen", because="koska"
    ),
    "Marathi": _Language(answer="उत्तर", final="अंतिम", beside="योग्य|बरोबर", verb="आहे", ending="आहे", so="म्हणून"),
    "Tamil": _Language(answer="பதில்|விடை", final="இறுதி", beside="சரியான", so="எனவே|ஆகவே", ending="ஆகும்"),
    "Telugu": _Language(answer="సమాధానం|జవాబు", final="తుది|చివరి", beside="సరైన", so="కాబట్టి"),
    "Gujarati": _Language(answer="જવાબ|ઉત્તર", final="અંતિમ", beside="સાચો", so="તેથી", ending="છે"),
    "Punjabi": _Language(answer="ਉੱਤਰ|ਜਵਾਬ|جواب", final="ਅੰਤਿਮ|ਆਖਰੀ", beside="ਸਹੀ", verb="ਹੈ", so="ਇਸ ਲਈ", ending="ਹੈ"),
    "Kannada": _Language(answer="ಉತ್ತರ", final="ಅಂತಿಮ", beside="ಸರಿಯಾದ", so="ಆದ್ದರಿಂದ"),
    "Malayalam": _Language(answer="ഉത്തരം", final="അന്തിമ|അവസാന", beside="ശരിയായ", so="അതിനാൽ", ending="ആണ്"),
    "Swahili": _Language(answer="jibu", final="la mwisho", beside="sahihi", verb="ni", so="kwa hiyo|hivyo"),
    "Tagalog": _Language(answer="sagot|kasagutan", final="huling|pinal", beside="ang|na|tamang", verb="ay", so="kaya"),
    "Catalan": _Language(answer="resposta", final="final", beside="la|correcta", verb="és", so="per tant|doncs"),
    "Bulgarian": _Language(
        answer="отговор|отговорът", final="окончателен|крайният", beside="верният|правилен", verb="е", so="следователно"
    ),
    "Serbian and Croatian": _Language(
        answer="odgovor|одговор", final="konačan|konačni|коначан", beside="tačan|točan|тачан", verb="je|је", so="dakle"
    ),
}
"""One row for each language."""

SPACES = "[ \t\u00a0\u3000]"
DECORATION = rf"(?:{SPACES}|[*_~`'\"”’」』】〕\]){{}}>|#\u200b-\u200f\ufe0f]|</?[a-z]{{1,10}}>)*+"
"""Markup between an announcement and its answer."""

_REFUTED = "❌✗✘✖👎🚫⛔"
_LINE_START = (
    rf"(?:(?:[^\w\n$\\<{_REFUTED}]|_){{1,8}}+|</?[a-z]{{1,10}}>|<|\\(?:text|math)(?:bf|it|rm)?\{{"
    rf"|\d{{1,3}}[.)](?={SPACES})){{0,5}}+"
)
_SENTENCE_START = (
    r"(?:^|(?<=[.!?;:…)*][ \t])|(?<=[。！？；，：、।۔؟\u200f])"
    r"|(?<=[ \t])(?=(?:so|thus|hence|therefore|donc|also|daher)[ ,]))"
)


def lowered(text: str) -> str:
    """Return the text in lower case, each character at the same index as before."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join([low if len(low := character.lower()) == 1 else character for character in text])


class Announcement(NamedTuple):
    """The words before an announced answer.

    Attributes:
        start: where they begin, with marks before them.
        end: where the answer begins.
        is_final: whether they say that it is the final one.
        is_solution: whether they may announce a worked solution instead.
        form: `colon` (a colon or another sign), `heading` (the end of the line), `verb` ("is"), or `none`: nothing
            separates them from a formula or number.
    """

    start: int
    end: int
    is_final: bool
    is_solution: bool
    form: str


def announcements(text: str, lower: str) -> Iterator[Announcement]:
    """Yield the announcements at the start of a line or of a sentence, in order.

    Args:
        text: the text.
        lower: `lowered(text)`.
    """
    if not any(noun in lower for noun in _NOUNS):  # much faster than the pattern
        return
    for head in _HEAD.finditer(lower):
        tail = _tail(head["word"]).match(lower, head.end())
        quotes = lower[max(head.start("word") - 1, 0) : head.start("word")] + lower[head.end() : head.end() + 1]
        if tail is None or quotes in ('""', "''"):  # a key in JSON
            continue
        said = lower[head.start() : tail.end()]
        form = "colon" if tail.lastgroup == "bracket" else tail.lastgroup or "none"
        yield Announcement(head.start(), tail.end(), _FINAL.search(said) is not None, head["word"] in _SOLUTIONS, form)


def without_ending(answer: str) -> str:
    """Remove a verb after an answer: `73です` becomes `73`."""
    ending = _ENDING.search(answer[-_LONGEST_ENDING:])
    return answer[: len(answer) - len(ending[0])].rstrip() if ending else answer


def _words(column: str, *, row: _Language | None = None) -> list[str]:
    """The words of a column of the table, as they may be encoded, the longest first."""
    rows = LANGUAGES.values() if row is None else [row]
    words = {word for each in rows for word in getattr(each, column).split("|") if word}
    return sorted({form for word in words for form in _forms(word, bare=column != "verb")}, key=lambda w: (-len(w), w))


def _forms(word: str, *, bare: bool) -> set[str]:
    """A word in NFC and NFD and, in Latin or Greek script, without accents."""
    decomposed = unicodedata.normalize("NFD", word)
    forms = {unicodedata.normalize("NFC", word), decomposed}
    if bare and all(ord(character) < 0x400 for character in decomposed):
        forms.add("".join([character for character in decomposed if not unicodedata.combining(character)]))
    return forms


def _any_of(words: list[str]) -> str:
    return "|".join([_phrase(word) for word in words]) or "(?!)"


def _phrase(word: str) -> str:
    """A pattern of a word or phrase that ends where the word does; scripts without spaces have no such end."""
    pattern = re.escape(word).replace(r"\ ", f"{SPACES}++")
    is_spaced = ord(word[-1]) < 0x0E00 or 0x1E00 <= ord(word[-1]) < 0x2000
    return pattern + (r"(?![^\W_])" if is_spaced and word[-1].isalnum() else "")


@cache
def _tail(noun: str) -> re.Pattern[str]:
    """The pattern of what follows a noun, in the languages that have it."""
    rows = [row for row in LANGUAGES.values() if noun in (*_words("answer", row=row), *_words("solution", row=row))]
    row = _Language(*["|".join(filter(None, column)) for column in zip(*rows, strict=True)])
    beside = _any_of(_words("final", row=row) + _words("beside", row=row))
    about = (
        rf"(?:to|for|of){SPACES}++(?:the|this|that|your|our){SPACES}++(?:[a-z]{{1,20}}{SPACES}++)?"
        r"(?:problem|question|exercise|equation|riddle|puzzle|task)\b"
    )
    verb = _any_of(_words("verb", row=row))
    adverb = r"(?:therefore|thus|then|hence|simply|just|clearly|indeed|equal to|given by|found to be|donc|also|daher)\b"
    return re.compile(
        rf"(?:{SPACES}*+(?:{about}|{beside}))*+(?:{SPACES}*+[(（][^()（）\n]{{0,40}}[)）])?+{DECORATION}"
        rf"(?:(?P<colon>[:：﹕꞉]|[=≈→⇒](?![=>])|[-–—]++(?={SPACES}))|(?P<heading>{SPACES}*+\r?$)"
        rf"|(?P<verb>(?:{verb})(?:{SPACES}*+{adverb})*+{DECORATION}[:：]?+)|(?P<bracket>(?<=[】］\]])|(?<=[】］\]] ))"
        rf"|(?P<none>(?=\$|\\[(\[]|[-+−]?\d)))"
        rf"(?:{SPACES}|[*_:：]|</[a-z]{{1,10}}>|\}}(?={SPACES}))*+",
        re.MULTILINE,
    )


_SOLUTIONS = frozenset(_words("solution")) - frozenset(_words("answer"))
_NOUNS = sorted({*_words("answer"), *_words("solution")}, key=lambda word: (-len(word), word))
_FINAL = re.compile(_any_of(_words("final")))
_FIRST_CHARACTERS = "".join(
    sorted(
        {re.escape(word[0]) for column in ("so", "final", "beside", "answer", "solution") for word in _words(column)}
    )
)
_HEAD = re.compile(
    rf"{_SENTENCE_START}{_LINE_START}(?=[{_FIRST_CHARACTERS}])(?:(?:{_any_of(_words('so'))}),?{SPACES}*+[,，、:：]?{SPACES}*+){{0,3}}+[*_\"“]*+"
    rf"(?:(?:{_any_of(sorted({*_words('final'), *_words('beside')}, key=len, reverse=True))}){SPACES}*+){{0,5}}+"
    rf"[*_\"“]*+(?P<word>{_any_of(_NOUNS)})",
    re.MULTILINE,
)
_LONGEST_ENDING = 24
_ENDING = re.compile(rf"(?:(?<=\S)|{SPACES})(?:{_any_of(_words('ending'))})[.。।۔]?\Z")
BECAUSE = re.compile(rf"(?:{_any_of(_words('because'))})")
"""Words that begin a reason, in lower case."""
_THEN = r"(?=[\s,.!:;，。、！]|\Z)"
WRONG, WAIT = (rf"(?:{_any_of(_words(column))}){_THEN}" for column in ("wrong", "wait"))
"""Patterns of what begins a sentence that takes an answer back for certain, or perhaps, other than in English."""
