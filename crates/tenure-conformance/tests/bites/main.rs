//! The suite bites: a store that is wrong in one way fails the behaviours that are about it.

mod flaw;

use std::collections::BTreeSet;
use std::sync::Arc;

use flaw::{Broken, Flaw};
use tenure::store::Store;
use tenure_conformance::{Outcome, Subject, behaviours, run_all, run_one};

/// Each flaw with behaviours that must notice it.
const TEETH: &[(Flaw, &[&str])] = &[
    (
        Flaw::IgnoresConditions,
        &[
            "must_create_refuses_what_exists",
            "concurrent_increments_by_tasks_add_up",
            "one_of_many_tasks_creates",
            "concurrent_histories_are_linearizable",
        ],
    ),
    (
        Flaw::ChecksThenActs,
        &["concurrent_increments_by_tasks_add_up", "concurrent_histories_are_linearizable"],
    ),
    (
        Flaw::IgnoresTokens,
        &["a_released_lease_fences_out", "fenced_increments_stop_when_the_lease_moves"],
    ),
    (
        Flaw::KeepsTheToken,
        &["a_new_token_is_greater_and_keeps_the_creation", "tokens_never_repeat"],
    ),
    (Flaw::TellsTheLastCondition, &["the_first_failing_condition_is_told"]),
    (
        Flaw::AppliesOneByOne,
        &[
            "a_commit_applies_all_or_nothing",
            "a_commit_has_one_revision_and_one_batch",
            "concurrent_commits_are_linearizable",
        ],
    ),
    (Flaw::ForgetsAcknowledged, &["a_watch_misses_and_repeats_nothing"]),
    (Flaw::CountsEqualPuts, &["an_equal_put_changes_nothing", "an_equal_put_wakes_no_watcher"]),
    (Flaw::DropsTakenNames, &["a_name_belongs_to_one_object_of_a_kind"]),
    (
        Flaw::ReadsStale,
        &[
            "acknowledged_writes_are_read_everywhere",
            "concurrent_histories_are_linearizable",
            "histories_with_lives_are_linearizable",
        ],
    ),
    (Flaw::ListSkips, &["pages_of_any_size_add_up", "pages_hold_while_others_write"]),
    (Flaw::ListRepeats, &["pages_of_any_size_add_up", "pages_hold_while_others_write"]),
    (Flaw::ListSortsByLetter, &["lists_are_in_bytewise_order"]),
    (Flaw::PageRevisionAhead, &["a_list_and_a_watch_join_without_a_gap"]),
    (Flaw::WatchDrops, &["a_watch_misses_and_repeats_nothing", "a_slow_watcher_gets_everything"]),
    (Flaw::WatchRepeats, &["a_watch_misses_and_repeats_nothing", "fifty_watchers_hear_the_same"]),
    (
        Flaw::WatchSplits,
        &["a_commit_has_one_revision_and_one_batch", "a_filtered_commit_stays_one_batch"],
    ),
    (Flaw::WatchHidesDeletes, &["a_watch_tells_changes_in_order"]),
    (Flaw::WatchIgnoresPrefix, &["a_watch_keeps_to_its_kind_and_prefix"]),
    (Flaw::WatchClaimsTooMuch, &["a_watch_resumes_where_it_was_dropped"]),
    (Flaw::WatchStartsNow, &["a_watch_starts_at_any_revision", "a_watch_of_the_future_is_refused"]),
    (
        Flaw::LivesTooLong,
        &[
            "an_object_lives_as_long_as_it_was_granted",
            "an_expired_lease_fences_out",
            "histories_with_lives_are_linearizable",
        ],
    ),
    (
        Flaw::LivesTooShort,
        &["an_object_lives_as_long_as_it_was_granted", "histories_with_lives_are_linearizable"],
    ),
    (
        Flaw::IgnoresTtl,
        &[
            "an_expired_object_is_absent_to_readers",
            "the_remaining_life_counts_down",
            "histories_with_lives_are_linearizable",
        ],
    ),
    (Flaw::TouchBumps, &["a_touch_changes_nothing_else", "a_touch_wakes_no_watcher"]),
    (
        Flaw::TouchLies,
        &[
            "a_touch_starts_the_life_anew",
            "touches_stand_alone_and_answer_in_order",
            "histories_with_lives_are_linearizable",
        ],
    ),
    (Flaw::TouchForgets, &["histories_with_lives_are_linearizable"]),
    (Flaw::RemembersTheDead, &["histories_with_lives_are_linearizable"]),
    (
        Flaw::TouchIgnoresRevision,
        &["touches_stand_alone_and_answer_in_order", "histories_with_lives_are_linearizable"],
    ),
    (Flaw::TouchFails, &["a_lease_is_renewed_for_as_long_as_it_is_held"]),
    (Flaw::MergesLabels, &["labels_are_replaced_as_a_whole"]),
    (Flaw::ConflictLies, &["a_stale_version_conflicts_and_a_gone_object_is_not_found"]),
];

fn broken(flaw: Flaw) -> Subject {
    let backend = Broken::backend(flaw);
    Subject::new(Arc::new(move || {
        let store = Store::from_arc(Arc::clone(&backend));
        Box::pin(async move { Ok(store) })
    }))
}

/// Those of the named behaviours that a store with this flaw passes nevertheless.
async fn unnoticed(flaw: Flaw, teeth: &[&'static str]) -> Vec<&'static str> {
    let subject = broken(flaw);
    let mut passed = teeth.to_vec();
    for behaviour in behaviours().iter().filter(|behaviour| teeth.contains(&behaviour.name)) {
        match run_one(&subject, behaviour).await.outcome {
            Outcome::Failed(why) => {
                println!("{flaw:?}: {}: {why}", behaviour.name);
                passed.retain(|name| *name != behaviour.name);
            }
            outcome => println!("{flaw:?}: {}: {outcome:?}", behaviour.name),
        }
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_flaw_is_noticed_by_the_behaviours_about_it() {
    let checking = TEETH.iter().map(|(flaw, teeth)| {
        let task = tokio::spawn(unnoticed(*flaw, teeth));
        async move { (flaw, task.await.unwrap()) }
    });
    let checked = futures::future::join_all(checking).await;
    let blind: Vec<_> = checked.iter().filter(|(_, passed)| !passed.is_empty()).collect();
    assert!(blind.is_empty(), "flaws that went unnoticed: {blind:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_suite_reports_what_fails_and_goes_on() {
    let mut failed = BTreeSet::new();
    let summary = run_all(&broken(Flaw::IgnoresTokens), |report| {
        if let Outcome::Failed(_) = report.outcome {
            failed.insert(report.name);
        }
    })
    .await;
    assert_eq!(summary.failed, failed.len());
    assert!(failed.contains("an_expired_lease_fences_out"), "{failed:?}");
    assert!(summary.failed < 15 && summary.passed > 90, "{summary:?}: {failed:?}");
}

/// How this went on a store with this flaw, and how often it was tried.
async fn tried(flaw: Flaw, name: &str) -> (Outcome, u32) {
    let all = behaviours();
    let Some(behaviour) = all.iter().find(|behaviour| behaviour.name == name) else {
        return (Outcome::NotApplicable(format!("no behaviour is called {name}")), 0);
    };
    let report = run_one(&broken(flaw), behaviour).await;
    (report.outcome, report.tries)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_too_late_gets_more_time_and_what_is_wrong_does_not() {
    let renewed = "a_lease_is_renewed_for_as_long_as_it_is_held";
    let (slow, dead, wrong) = tokio::join!(
        tried(Flaw::TouchDawdles, renewed),
        tried(Flaw::TouchFails, renewed),
        tried(Flaw::IgnoresTokens, "an_expired_lease_fences_out"),
    );
    assert!(matches!(slow, (Outcome::Passed, 2..)), "{slow:?}");
    assert!(matches!(dead, (Outcome::Failed(_), 3)), "{dead:?}");
    assert!(matches!(wrong, (Outcome::Failed(_), 1)), "{wrong:?}");
}
