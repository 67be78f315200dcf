"""Where an answer can stand, by class: whatever stands around a right answer, it is found; nothing of it is lost."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer_client.text.answer_words import LANGUAGES, lowered
from trainer_client.text.final_answer import extract_final_answer

KEYS = json.loads((Path(__file__).parents[1] / "judge_server/verifiers/math500_answers.json").read_text())
VALUES = [
    "73",
    "-4.5",
    "1,234",
    "1/2",
    "B",
    "Paris",
    "$\\frac{1}{2}$",
    "x = 5, y = 7",
    "[0, 1)",
    "30°",
    "80 km/h",
    "12%",
]

ANNOUNCEMENTS = [
    "Answer: {}",
    "Answer:{}",
    "ANSWER: {}",
    "Ans: {}",
    "Answer = {}",
    "Answer - {}",
    "Final answer: {}",
    "My final answer: {}",
    "**Answer:** {}",
    "**Answer: {}**",
    "*Answer:* {}",
    "*Answer: {}*",
    "__Answer:__ {}",
    "- Answer: {}",
    "* Answer: {}",
    "+ **Answer:** {}",
    "• Answer: {}",
    "1. Answer: {}",
    "2) **Answer**: {}",
    "> Answer: {}",
    "> - **Final Answer:** {}",
    "✅ Answer: {}",
    "➡️ **Final Answer**: {}",
    "→ Answer: {}",
    "## Answer: {}",
    "### Answer\n{}",
    "### Answer\n\n{}",
    "### Answer:\n\n{}\n\nThat was fun.",
    "### ✅ Final Answer\n\n**{}**",
    "**Answer**\n\n{}",
    "Answer\n{}",
    "(Answer: {})",
    "[Answer]: {}",
    "<b>Answer:</b> {}",
    "\\textbf{{Answer:}} {}",
    "The answer is {}.",
    "The answer is: {}",
    "The correct answer is {}.",
    "The final answer is therefore {}.",
    "**The answer is {}.**",
    "So the answer is {}.",
    "Thus, our final answer is {}.",
    "Therefore, **the answer is {}**.",
    "Adding them up gives the total, so the answer is {}.",
    "The answer to the question is {}.",
    "The answer to this problem is {}.",
    "I think that the answer is {}.",
    "We conclude that the answer is {}.",
    "It adds up. Answer: {}",
    "#### {}",
    "<answer>{}</answer>",
    "<answer>\n{}\n</answer>",
    "<ANSWER> {} </ANSWER>",
    "<final_answer>{}</final_answer>",
    "<answer>**{}**</answer>",
    "<answer>Answer: {}</answer>",
    "<answer>{}",
    "[ANSWER]{}[/ANSWER]",
    "<answer>no</answer> Now <answer>{}</answer>",
    "I put it in <answer></answer> tags.\n<answer>{}</answer>",
    "The answer is 1.\nNow the last part.\nThe answer is {}.",
    "Answer: 1\nAnswer: {}",
    "<think>So <answer>1</answer>?</think>\n<answer>{}</answer>",
]
DRESSES = [
    "{}.",
    "{}!",
    "{}?",
    "{}!!",
    "**{}**",
    "**{}**.",
    "**{}.**",
    "***{}***",
    "*{}*",
    "`{}`",
    '"{}"',
    "“{}”.",
    "«{}»",
    "{} ✅",
    "{} 🎉🎉",
    "🎯 {}",
    "{}。",
    "{}<|im_end|>",
    "{}.<|im_end|>\n",
    "**{}**</s>",
    "{}<|eot_id|>",
    "{}<|endoftext|>",
    "{} <eos>",
    "{}<end_of_turn>\n",
    "{}<｜end▁of▁sentence｜>",
    "{}[|endofturn|]",
    "{}<|END_OF_TURN_TOKEN|>",
    "{}<|return|>",
    "{}\u200b",
    "\u200e{}\u200f",
    "{}\n\nLet me know if you have any questions!",
    "{}\n\nI hope this helps.<|im_end|>",
    "{}. I hope it is correct.",
]
IN_LANGUAGES = [
    ("Chinese", ["答案：{}", "答案是{}。", "答案为 {}", "最终答案：{}",
        "所以，答案是 {}。", "故答案为：{}", "【答案】{}", "因此最终答案是 {}。"]),
    ("Spanish", ["Respuesta: {}", "Respuesta final: {}",
        "**Respuesta:** {}", "La respuesta correcta es {}.", "Por lo tanto, la respuesta es {}."]),
    ("Hindi", ["उत्तर: {}", "अंतिम उत्तर: {}", "सही उत्तर है {}", "उत्तर: {} है।"]),
    ("Arabic", ["الإجابة: {}", "الجواب: {}", "الإجابة النهائية: {}", "الجواب هو {}", "الإجابة الصحيحة هي {}."]),
    ("Portuguese", ["Resposta: {}", "Resposta final: {}", "A resposta correta é {}.", "Portanto, a resposta é {}."]),
    ("Bengali", ["উত্তর: {}", "চূড়ান্ত উত্তর: {}", "সঠিক উত্তর: {}"]),
    ("Russian", ["Ответ: {}", "Ответ: {}.", "**Ответ:** {}",
        "Окончательный ответ: {}", "Правильный ответ: {}", "Ответ — {}"]),
    ("Japanese", ["答え: {}", "答え：{}", "答えは{}です。", "最終的な答え: {}",
        "最終的な答えは {} です。", "正解：{}", "よって、答えは {} となります。"]),
    ("German", ["Antwort: {}", "Die Antwort ist {}.", "Endgültige Antwort: {}", "Die richtige Antwort lautet {}."]),
    ("French", ["Réponse : {}", "Réponse: {}",
        "Réponse finale : {}", "La bonne réponse est {}.", "Donc, la réponse est {}."]),
    ("Korean", ["답: {}", "정답: {}", "정답은 {}입니다.", "최종 답: {}", "따라서 답은 {}입니다."]),
    ("Italian", ["Risposta: {}", "Risposta finale: {}", "La risposta è {}.", "La risposta corretta è {}."]),
    ("Turkish", ["Cevap: {}", "Doğru cevap: {}", "Nihai cevap: {}"]),
    ("Vietnamese", ["Đáp án: {}", "Đáp số: {}",
        "Đáp án đúng là {}.", "Vậy đáp án là {}.", "Câu trả lời cuối cùng: {}"]),
    ("Indonesian", ["Jawaban: {}", "Jawaban akhir: {}",
        "Jadi, jawabannya adalah {}.", "Jawaban yang benar adalah {}."]),
    ("Polish", ["Odpowiedź: {}", "Ostateczna odpowiedź: {}", "Odp.: {}", "Prawidłowa odpowiedź to {}."]),
    ("Dutch", ["Antwoord: {}", "Het antwoord is {}.", "Dus het juiste antwoord is {}.", "Eindantwoord: {}"]),
    ("Urdu", ["جواب: {}", "حتمی جواب: {}", "درست جواب: {}"]),
    ("Persian", ["پاسخ: {}", "پاسخ نهایی: {}", "جواب: {}"]),
    ("Ukrainian", ["Відповідь: {}", "Правильна відповідь: {}"]),
    ("Thai", ["คำตอบ: {}", "คำตอบคือ {}"]),
    ("Greek", ["Απάντηση: {}", "Η απάντηση είναι {}."]),
    ("Hebrew", ["תשובה: {}", "התשובה היא {}"]),
    ("Czech", ["Odpověď: {}", "Správná odpověď je {}."]),
    ("Swedish", ["Svar: {}", "Svaret är {}."]),
    ("Swahili", ["Jibu: {}"]),
    ("Tamil", ["பதில்: {}", "விடை: {}"]),
    ("Telugu", ["సమాధానం: {}"]),
]  # fmt: skip


def found(text):
    answer = extract_final_answer(text)
    return None if answer is None else answer.rstrip(".")


@pytest.mark.parametrize("announcement", ANNOUNCEMENTS)
@pytest.mark.parametrize("value", VALUES)
def test_an_announced_answer_is_found_whole(announcement, value):
    assert found("Let me see.\n\n" + announcement.format(value)) == value


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize(
    "announcement", ["{}", "Answer: {}", "**Answer:** {}", "The answer is {}", "### Answer\n\n{}", "#### {}"]
)
def test_decoration_is_no_part_of_an_answer(dress, announcement):
    said = announcement.format(dress.format("73"))
    if (announcement, dress) == ("{}", "{}!"):  # the factorial
        return
    assert found(said) == "73"
    assert found(announcement.format(dress.format("Paris"))) == "Paris"


@pytest.mark.parametrize(("language", "patterns"), IN_LANGUAGES)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_an_answer_is_found_in_the_words_of_many_languages(language, patterns, form):
    for pattern in patterns:
        for value in ("73", "**73**", "B", "$\\frac{1}{2}$"):
            text = unicodedata.normalize(form, "...\n" + pattern.format(value))
            assert found(text) == value.strip("*"), (language, text)


def test_every_row_of_the_table_announces_an_answer():
    for row in LANGUAGES.values():
        for noun in row.answer.split("|"):
            assert found(f"...\n{noun.capitalize().removesuffix('.')}: 73") == "73", noun


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("73", "73"),
        ("73\n", "73"),
        ("B", "B"),
        ("(B)", "(B)"),
        ("**73**", "**73**".strip("*")),
        ("$\\frac12$", "$\\frac12$"),
        ("$$\n73\n$$", "73"),
        ("\\[ x = 5 \\]", "x = 5"),
        ("```\n73\n```", "73"),
        ("73<|im_end|>", "73"),
        ("73</answer>", "73"),
        ("New York City", "New York City"),
        ("No solution", "No solution"),
        ("5!", "5!"),
        ("x^5 - x^4 + x^3 - x^2 + x - 1", "x^5 - x^4 + x^3 - x^2 + x - 1"),
        ("∅", "∅"),
        ("(a) 2 (b) 3", "(a) 2 (b) 3"),
        ("A: 2, B: 3", "A: 2, B: 3"),
        ("It is the case that one cannot say.", None),
        ("73\n74", None),
        ("There is no answer", None),
        ("...", None),
    ],
)
def test_a_response_that_is_only_an_answer_is_one(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\fbox{73}.", "73"),
        ("So \\framebox{73}.", "73"),
        ("So \\framebox[2cm][c]{73}.", "73"),
        ("$\\boxed7$", "7"),
        ("\\boxed 7", "7"),
        ("\\boxed 73.", "73"),
        ("$\\boxed\\frac12$", "\\frac12"),
        ("$\\boxed \\frac{1}{2}$", "\\frac{1}{2}"),
        ("\\(\\boxed\\pi\\)", "\\pi"),
        ("\\boxedly 7\nand more", None),
    ],
)
def test_a_box_may_have_another_name_or_lack_braces(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"answer": 73}', "73"),
        ('{"steps": ["a", "b"], "final_answer": "73"}', "73"),
        ('```json\n{"answer": "\\\\frac{1}{2}"}\n```', "\\frac{1}{2}"),
        ('{"answer": "\\\\boxed{73}", "sure": true}', "73"),
        ("{'answer': 'B'}", "B"),
        ('{"answer": [1, 2]}', "1, 2"),
        ('{"answer": "The answer is 73."}', "73"),
        ('{"answer": null}\n', None),
        ('{"answer": 72}\n{"answer": 73}', "73"),
    ],
)
def test_an_answer_in_json_is_found(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 72, which is the total.", "72"),
        ("Answer: 72 (since 70+2)", "72"),
        ("Answer: 72, since 70 + 2 = 72.", "72"),
        ("Answer: B, because the others are wrong shapes", "B, because the others are wrong shapes"),
        ("Answer: B, because it is the only prime", "B, because it is the only prime"),
        ("Answer: B, because it is even", "B"),
        ("Answer: B because it is even", "B"),
        ("Answer: Yes, because the sky is blue.", "Yes"),
        ("Respuesta: B, porque es azul", "B"),
        ("Answer: 72 - the total number of eggs", "72"),
        ("Answer: 72 — the total number of eggs", "72"),
        ("Answer: 1/2, i.e. one half", "1/2"),
        ("Answer: about 72", "72"),
        ("Answer: approximately 72 km", "72 km"),
        ("Answer: 72. This is because 70 + 2 = 72.", "72"),
        ("The answer is 72. It is the total of both.", "72"),
        ("The answer is Paris. I hope this helps!", "Paris"),
    ],
)
def test_a_reason_after_an_answer_is_no_part_of_it(text, answer):
    assert found(text) == answer


@pytest.mark.parametrize(
    "answer",
    [
        "x = 5, y = 7",
        "x = 5, which gives y = 7",
        "72, 73",
        "72 and 73",
        "5 or 6",
        "5, or 6",
        "not 5",
        "5, but only if n is even",
        "5 unless n is odd",
        "5, if n is even",
        "5 when x > 0, and 6 otherwise",
        "73? No, 74",
        "73. No, 74",
        "73. Wait, actually 74",
        "73, which is wrong",
        "73 because it is not 74",
        "73, since 73 or 74 would do",
        "5 (mod 7)",
        "101 (base 2)",
        "5 (in thousands)",
        "5 million",
        "at least 5",
        "10 a.m.",
        "Washington, D.C.",
        "Martin Luther King Jr.",
        "Dr. Smith",
        "B. Paris",
        "3. New York",
        "Paris, Texas",
        "the cat, the dog",
        "1, 2, 3, ...",
        "n!",
        "10!/(3!7!)",
        "(a) 2 (b) 3",
        "73 ❌",
        "~~73~~ 74",
        '"yes" or "no"',
    ],
)
def test_no_part_that_matters_is_taken_from_an_answer(answer):
    assert extract_final_answer(f"Answer: {answer}") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{4}.\n\n**Answer: D**", "D"),
        ("So \\boxed{4}.\n\nFinal answer: She has 4 cows.", "4"),
        ("So \\boxed{4}.\n\nFinal answer: She has 5 cows.", "She has 5 cows"),
        ("So \\boxed{4}.\n\nFinal answer: 4 or maybe 5", "4 or maybe 5"),
        ("So \\boxed{4}.\n\nHmm. The answer is 5.", "5"),
        ("So \\boxed{4}.\n\nThe answer is positive, as it should be.", "4"),
        ("So \\boxed{4}.\n\nThe answer is correct.", "4"),
        ("Answer: 73\nAnswer: 74", "74"),
        ("<answer>73</answer>\n<answer>74</answer>", "74"),
        ("<answer>73</answer>\nAnswer: 74", "74"),
        ("Answer: 74\n\\boxed{73}", "73"),
        ("The answer is 73.\nWait, actually 74.", None),
        ("So \\boxed{73}.\nWait, that is wrong, it should be 74.", None),
        ("So \\boxed{73}.\nNo, I made a mistake.", None),
        ("The answer is B.\nWait, actually C.", None),
        ("So \\boxed{73}.\nWait, let me check: 70 + 3 = 73. Yes.", "73"),
        ("The answer is 73.\nWait, actually 74.\nAnswer: 74", "74"),
        ("❌ Answer: 72\n✅ Answer: 73", "73"),
        ("✅ Answer: 73\n❌ Answer: 72", "73"),
        ("Answer:\n- x = 5\n- y = 7", "x = 5, y = 7"),
        ("Answer:\n(a) 2\n(b) 3\n\nDone.", "(a) 2 (b) 3"),
        ("Answer: (a) 2\n(b) 3", "(a) 2 (b) 3"),
        ("### Answer\n\nThe total is:\n\n$$73$$", "73"),
        ("Answer: It takes time.\nIf it went on, it would take 180 days.\nTherefore, the answer is: 180.", "180"),
        ("### Answer\n\nTo solve this, we add up what we know:\n\n70 + 3\n\nSo the total is $73$.", "73"),
        ("Solution: We add 70 and 3 and get what was asked for.\nTherefore, the total is $73$.", "73"),
    ],
)
def test_the_last_statement_counts_unless_it_is_taken_back(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize("key", KEYS)
def test_a_real_answer_key_is_found_whole_in_every_announcement(key):
    for announcement in ["{}", "Answer: ${}$", "**Final Answer:** \\({}\\).", "The answer is ${}$.", "答案：${}$"]:
        text = announcement.format(key)
        assert (extract_final_answer(text) or "").strip("$").removeprefix("\\(").removesuffix("\\)") == key
    assert extract_final_answer(f"so \\fbox{{{key}}}") == key
    assert extract_final_answer(json.dumps({"answer": key})) == key


@given(st.text())
def test_lower_case_keeps_every_place(text):
    assert len(lowered(text)) == len(text)


@given(
    st.integers(-(10**9), 10**9).map(str) | st.decimals(-1000, 1000, places=2).map(str),
    st.sampled_from(ANNOUNCEMENTS),
    st.sampled_from(["{}", *DRESSES]),
)
def test_a_number_is_found_in_any_announcement_and_dress(number, announcement, dress):
    assume("!" not in dress or not {"<", "["} & {*announcement})  # within a tag, it is a factorial
    said = announcement.format(dress.format(number)).replace("..", ".")
    assert found("Let me see.\n\n" + said) == number
