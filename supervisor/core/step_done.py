"""A step is done: what is said of it, which incident it ends, and what it shows of pace and health."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core import pinned_steps
from supervisor.core.deadlines import start_of_limit
from supervisor.core.evolve import replace
from supervisor.core.moves import Actions, close_incident, enter, say, with_all
from supervisor.core.pace import with_step
from supervisor.core.phases import RESUME, STEP
from supervisor.core.state import State
from supervisor.core.training_health import judge_fact
from supervisor.core.verdicts import progress_sentence
from supervisor.core.words import span

WENT_ON_S = 60.0
STEPS_UNDER_WAY = 3  # prime-rl's default asynchrony of one or two, and the step that the trainer is in


def react(before: State, state: State, fact: f.StepDone) -> tuple[State, Actions]:
    """Judge what the step says of the training, then what it says of the run."""
    state, found = judge_training(before, state, fact)
    return with_all(found, _step_done(before, state))


def judge_training(before: State, state: State, fact: f.StepDone | f.ErrorSeen) -> tuple[State, Actions]:
    """Training that goes on and is worth nothing: said, with the way back. What is done is the policy's to decide."""
    # Until an attempt's first step, those of the attempt before are no reason to take a lower number for known.
    known = state.worth if before.progress.step is not None else replace(state.worth, newest={})
    worth, news = judge_fact(known, fact, state.now, state.wall)
    if worth is state.worth:
        return state, []
    state = replace(state, worth=worth)
    acts: Actions = []
    for one in news:
        if one.cleared:
            acts.append(say("worth", one.sentence + pinned_steps.until_when(state, one.name), finding=one.name))
        else:
            sentence = pinned_steps.with_advice(state, one.name, one.sentence)
            acts.append(say("worth", sentence, "warning", finding=one.name))
    return state, acts


def _step_done(before: State, state: State) -> tuple[State, Actions]:
    step = state.progress.step
    if step is None or step == before.progress.step or not (state.live or state.is_being_stopped):
        return state, []
    progress, sentence = state.progress, progress_sentence(state)
    sentence += ", while the job is stopped" * state.is_being_stopped
    acts: Actions = [say("step", sentence, step=step, seconds=progress.duration_s, reward=progress.reward)]
    if state.is_being_stopped:
        return state, acts
    state, went_on = _went_on(state)
    state, slower = _report_slower_pace(before, state)
    acts += [*went_on, *slower]
    if state.mode == "starting":
        if state.attempt.resume_step is not None and state.job.scratch and step < state.attempt.resume_step:
            return state, acts  # it began from scratch: the verdicts deal with it
        old = before.progress.step is not None and before.progress.t <= state.attempt.started
        if (old or state.own.alone) and (state.own.asked or not state.engine.ever_ok):
            return state, acts  # what was under way when its inference server failed; the new one has shown nothing yet
        if state.attempt.resume_step is not None and step + 1 < state.attempt.resume_step:
            # Not acted upon: a plain job may count its steps anew. A person who knows better has to hear of it at once.
            sentence = (
                f"The job was told to resume at step {state.attempt.resume_step} and counts step {step}: it may "
                "have begun from scratch, and then it overwrites checkpoints. Look at its log; stop it with "
                "supervisorctl stop."
            )
            acts.append(say("fresh-start", sentence, "error", step=step, resume_step=state.attempt.resume_step))
        if before.progress.timed:
            took_s = state.now - start_of_limit(before, until=state.now)
            state = replace(state, books=state.books.with_time(RESUME, took_s))
        state = enter(state, "running", "The run makes steps.")
        state = replace(state, attempt=replace(state.attempt, snapshot=state.attempt.number))
        state, over = _close_incident(state, step)
        acts += over
    return state, acts


def _close_incident(state: State, step: int) -> tuple[State, Actions]:
    one = state.incidents.open
    if one is None:
        return state, []
    lasted = span(state.now - one.opened)
    sentence = f"Incident {one.id} is over after {lasted}: step {step} is done. It was: {one.sentence}"
    return close_incident(state, step), [say("incident-closed", sentence, incident=one.id, step=step)]


def _report_slower_pace(before: State, state: State) -> tuple[State, Actions]:
    """Say once when steps take longer for good, and what the GPUs read then."""
    took_s, began = state.progress.interval_s, before.progress.t
    explained = any(one.phase in ("checkpoint", "eval") and one.t >= began for one in before.job.phases.values())
    if took_s is None or not before.progress.timed or explained:
        return state, []
    known = state.pace.said
    pace, told = with_step(state.pace, took_s, before.books.learned.phases.get(STEP), state.now, state.wall)
    state = replace(state, pace=pace)
    if not told:
        return state, []
    if known:
        return state, [say("pace", told)]
    gpus = [memory.gpu for memory in state.gpus.by_uuid.values()]
    slowed = [f"{gpu.name}: {gpu.slowed}." for gpu in sorted(gpus, key=lambda gpu: (gpu.host, gpu.index)) if gpu.slowed]
    if gpus and all(gpu.slowed == "" for gpu in gpus):
        slowed = ["No GPU reports that it is slowed."]
    return state, [say("pace", " ".join([told, *slowed]), "warning")]


def _went_on(state: State) -> tuple[State, Actions]:
    """A step is done after we would have acted: a counterfactual gets its end once that step says something."""
    if all(one.outcome for one in state.observing.would):
        return (replace(state, observing=replace(state.observing, spared="")) if state.observing.spared else state), []
    acts: Actions = []
    would = []
    for one in state.observing.would:
        since = (state.progress.step or 0) - (one.step if one.step is not None else -1)
        # With its engine gone, a trainer still does the steps that have their rollouts already.
        under_way = STEPS_UNDER_WAY if one.cause.startswith("engine-") or one.cause.endswith("-gone") else 1
        told = one
        if not one.outcome and since >= under_way:
            after = span(state.wall - one.wall)
            outcome = f"the run went on by itself after {after}: step {state.progress.step} is done"
            acts.append(say("would-not", f"{outcome[0].upper()}{outcome[1:]}. {one.sentence}"))
            told = replace(one, outcome=outcome, outcome_wall=state.wall)
        would.append(told)
    if not acts:
        return state, []
    # Whatever went did not stop it; one that went just now may have left the trainer its last step.
    gone = tuple(one for one in state.job.gone if state.now - one.t < WENT_ON_S)
    return replace(
        state, observing=replace(state.observing, spared="", would=tuple(would)), job=replace(state.job, gone=gone)
    ), acts
