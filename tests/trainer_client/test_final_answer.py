"""The final answer of a response, and where it begins."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cases import cases, each_case
from trainer_client.final_answer import extract_final_answer
from trainer_client.final_answer.words import LANGUAGES, lowered


@each_case("text", "answer")
def test_the_last_boxed_answer_is_found_with_its_braces_balanced(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"$\boxed{2}, \boxed{3}, \boxed{5}$", "2, 3, 5"),
        (r"\boxed{-2} and \boxed{1}", "-2, 1"),
        (r"\boxed{5} or \boxed{7}", "5, 7"),
        (r"$$\boxed{k = 45} \quad \text{and} \quad \boxed{n = 2}$$", "k = 45, n = 2"),
        (r"\boxed{4}, that is \boxed{4}", "4"),
        (r"\boxed{1} and \boxed{} and \boxed{2}", "1, 2"),
        (r"\boxed{1}" + " " * 60 + r"or \boxed{2}", "1, 2"),
        (r"\boxed{1}" + " " * 70 + r"or \boxed{2}", "2"),
        (r"\boxed{1} but then again \boxed{2}", "2"),
    ],
)
def test_adjacent_boxes_are_one_answer(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{4}.\nWait, no.\nFinal Answer: 5", "5"),
        ("So \\boxed{4}.\n\n**Final Answer**\n\n5", "5"),
        ("Final answer: 5\nI mean \\boxed{4}", "4"),
        ("That is \\boxed{4}. No. Final Answer: The final answer is $5$. I hope it is correct.", "$5$"),
        ("That is \\boxed{4}. The final answer is therefore 4.", "4"),
    ],
)
def test_the_later_of_a_box_and_a_final_answer_line_counts(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_a_concluding_last_line_is_the_answer_where_nothing_else_is(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_without_a_box_the_marked_answer_is_used(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_a_formula_at_the_start_of_an_answer_is_read_to_its_end(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Final Answer: The final answer is $10,455$. I hope it is correct.", "$10,455$"),
        ("Final answer: the answer is:\n5", "5"),
        ("Final Answer\nThe answer is 5", "5"),
        ("Final answer: $5$. Or maybe $7$.", "$5$. Or maybe $7$"),
        ("Final answer: $5$. Or 7.", "$5$. Or 7"),
        ("Final answer: Dr. Smith", "Dr. Smith"),
    ],
)
def test_repeated_announcements_and_trailing_words_are_stripped_from_the_answer(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text")
def test_a_text_without_a_marked_answer_has_none(text):
    assert extract_final_answer(text) is None


@given(st.text())
def test_any_text_gives_a_stripped_answer_or_none_without_an_error(text):
    answer = extract_final_answer(text)
    assert answer is None or (answer and answer == answer.strip())


@given(st.text(), st.text(st.characters(exclude_characters="{}\\", exclude_categories=["Cs", "Z", "C"]), min_size=1))
def test_a_box_at_the_end_is_always_the_answer(text, answer):
    assume("\\boxed" not in text)
    assert extract_final_answer(f"{text}\n\\boxed{{{answer}}}") == answer


KEYS = json.loads((Path(__file__).parents[1] / "judge_server/verifiers/math500_answers.json").read_text())

VALUES = cases(__file__, "values")

ANNOUNCEMENTS = cases(__file__, "announcements")

DRESSES = cases(__file__, "dresses")

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


@each_case("text", "answer")
def test_a_box_may_have_another_name_or_lack_braces(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_an_answer_in_json_is_found(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_a_reason_after_an_answer_is_no_part_of_it(text, answer):
    assert found(text) == answer


@each_case("answer")
def test_no_part_that_matters_is_taken_from_an_answer(answer):
    assert extract_final_answer(f"Answer: {answer}") == answer


@each_case("text", "answer")
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
