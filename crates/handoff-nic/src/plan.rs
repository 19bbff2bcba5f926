//! What you want of an interface, and the steps that lead there from its current settings.

use serde::Serialize;

use crate::fitness::Weight;
use crate::queues::list;
use crate::settings::{HARDWARE_GRO, NTUPLE, Ring};
use crate::{Change, Error, Flow, Nic, even};

/// Which rx queues to set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many, from the highest down, without those that others use.
    Count(u32),
    /// These queues.
    These(Vec<u32>),
}

/// What you want of an interface.
///
/// ```no_run
/// use handoff_nic::{Flow, Ip, Nic, Plan, Wanted};
///
/// # fn main() -> Result<(), handoff_nic::Error> {
/// let plan = Plan {
///     queues: Wanted::Count(2),
///     flows: vec![(Flow::port(Ip::V4, 8000), 0), (Flow::port(Ip::V4, 8001), 1)],
///     ..Plan::default()
/// };
/// for step in plan.steps(&Nic::look("eth0")?)? {
///     println!("{}", step.text); // what Prepared::new would do
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which rx queues.
    pub queues: Wanted,
    /// The flows to steer, each with its queue: 0 is the lowest queue set aside; numbers beyond the
    /// highest start again at the lowest.
    pub flows: Vec<(Flow, usize)>,
    /// Whether each flow is spread over all queues set aside, by an RSS context, in place of being steered to one.
    pub spread: bool,
    /// Bytes of the rings' buffers; `None` leaves them. (The chunk size of a queue is given when it is
    /// bound.)
    pub buffer_length: Option<u32>,
    /// Whether to switch hardware GRO on; otherwise it stays as it is.
    pub hardware_gro: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            queues: Wanted::Count(1),
            flows: Vec::new(),
            spread: false,
            buffer_length: None,
            hardware_gro: false,
        }
    }
}

/// One step of preparing an interface.
///
/// [`Plan::steps`] and [`Prepared::steps`](crate::Prepared::steps) return it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What it does, in a sentence.
    pub text: String,
    /// The change.
    pub change: Change,
}

impl From<Change> for Step {
    fn from(change: Change) -> Self {
        let mut text = change.to_string();
        if matches!(change, Change::Channels { .. } | Change::Ring { .. }) {
            text.push_str(" (the driver may interrupt all traffic for a moment)");
        }
        Self { text, change }
    }
}

/// A plan that is possible on this interface, with its queues chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    plan: Plan,
    /// Ascending.
    pub(crate) queues: Vec<u32>,
    channels: u32,
}

impl Plan {
    /// The steps that lead there, in order; none if everything is as wanted.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] with what stands in the way; [`Error::Invalid`] for a plan that makes no
    /// sense.
    pub fn steps(&self, nic: &Nic) -> Result<Vec<Step>, Error> {
        self.on(nic)?.steps(nic)
    }

    /// The queues that the plan would set aside.
    ///
    /// # Errors
    ///
    /// As [`steps`](Self::steps).
    pub fn queues(&self, nic: &Nic) -> Result<Vec<u32>, Error> {
        Ok(self.on(nic)?.queues)
    }

    /// Whether any plan is possible on the interface.
    pub(crate) fn possible(nic: &Nic) -> Result<(), Error> {
        let blocking: Vec<_> = nic
            .obstacles()
            .into_iter()
            .filter(|obstacle| obstacle.weight == Weight::Blocks)
            .map(|obstacle| match obstacle.remedy {
                Some(remedy) => format!("{} (needed: {remedy})", obstacle.cause),
                None => obstacle.cause,
            })
            .collect();
        match &blocking[..] {
            [] => Ok(()),
            _ => Err(Error::not_possible(format!("{}: {}", nic.name, blocking.join("; ")))),
        }
    }

    /// Chooses the queues.
    pub(crate) fn on(&self, nic: &Nic) -> Result<Target, Error> {
        Self::possible(nic)?;
        let (now, max) = nic.channels.map_or((1, 1), |channels| (channels.now, channels.max));
        let (queues, channels) = match &self.queues {
            Wanted::Count(count) => choose(nic, *count, now, max)?,
            Wanted::These(queues) => {
                let mut queues = queues.clone();
                queues.sort_unstable();
                queues.dedup();
                check(nic, &queues, max)?;
                let highest = queues.last().copied().unwrap_or_default();
                (queues, now.max(highest + 1))
            }
        };
        Ok(Target { plan: self.clone(), queues, channels })
    }
}

/// The highest queues that nobody uses, with more channels where there are not enough.
fn choose(nic: &Nic, count: u32, now: u32, max: u32) -> Result<(Vec<u32>, u32), Error> {
    if count == 0 {
        return Err(Error::invalid("at least one queue must be wanted"));
    }
    let (mut queues, mut passed_over) = (Vec::new(), Vec::new());
    for queue in (1..now).rev() {
        match nic.use_of(queue) {
            None => queues.push(queue),
            Some(why) => passed_over.push(format!("queue {queue} {why}")),
        }
    }
    queues.truncate(count as usize);
    let missing = count - queues.len() as u32;
    // Nobody uses queues that do not exist yet.
    let channels = now.saturating_add(missing);
    if channels > max {
        let why = match &passed_over[..] {
            [] => "queue 0 is for the host's own traffic".to_owned(),
            _ => passed_over.join("; "),
        };
        return Err(Error::not_possible(format!(
            "{} can set aside {} of its queues, not {count}: it has {now}, {max} at most; {why}",
            nic.name,
            queues.len() as u32 + max.saturating_sub(now),
        )));
    }
    queues.extend(now..channels);
    queues.sort_unstable();
    Ok((queues, channels))
}

/// Checks whether the named queues can be set aside.
fn check(nic: &Nic, queues: &[u32], max: u32) -> Result<(), Error> {
    if queues.is_empty() {
        return Err(Error::invalid("at least one queue must be wanted"));
    }
    for queue in queues {
        if *queue >= max {
            let name = &nic.name;
            let cause = format!("{name} has no queue {queue}: it can have {max}, counted from 0");
            return Err(Error::invalid(cause));
        }
        if let Some(why) = nic.use_of(*queue) {
            let cause = format!("queue {queue} of {} {why}: choose another", nic.name);
            return Err(Error::not_possible(cause));
        }
    }
    Ok(())
}

impl Target {
    /// The steps left on an interface with these settings.
    pub(crate) fn steps(&self, nic: &Nic) -> Result<Vec<Step>, Error> {
        let mut changes = Vec::new();
        if let Some(channels) = nic.channels
            && channels.now < self.channels
        {
            let (kind, from, to) = (channels.kind, channels.now, self.channels);
            changes.push(Change::Channels { kind, from, to });
        }
        let rings = nic.rings.unwrap_or_default();
        for (setting, wanted) in [
            (Ring::DataSplit, Some(Ring::SPLIT)),
            // Without such a setting all packets are split.
            (Ring::SplitThreshold, rings.split_threshold.map(|_| 0)),
            (Ring::BufferLength, self.plan.buffer_length),
        ] {
            let (from, to) = match (rings.value(setting), wanted) {
                (_, None) => continue,
                (None, Some(_)) => {
                    let cause = "its driver cannot set the length of rx buffers";
                    return Err(Error::not_possible(format!("{}: {cause}", nic.name)));
                }
                (Some(from), Some(to)) => (from, to),
            };
            if from != to {
                changes.push(Change::Ring { setting, from, to });
            }
        }
        let gro = self.plan.hardware_gro;
        for (name, feature, wanted) in
            [(NTUPLE, nic.ntuple, true), (HARDWARE_GRO, nic.hardware_gro, gro)]
        {
            if wanted && !feature.on {
                if !feature.switchable {
                    let cause = format!("{}: its driver cannot switch {name} on", nic.name);
                    return Err(Error::not_possible(cause));
                }
                changes.push(Change::Feature { name: name.to_owned(), on: true });
            }
        }
        changes.extend(self.narrowing(nic)?);
        let (context, making) = self.context(nic)?.unzip();
        changes.extend(making.flatten());
        for (flow, place) in &self.plan.flows {
            let queue = match context {
                Some(_) => 0,
                None => self.queues[place % self.queues.len()],
            };
            changes.extend(leading(nic, flow, queue, context)?);
        }
        Ok(changes.into_iter().map(Step::from).collect())
    }

    /// The context that flows are spread by, and making it unless it exists. It has only what rules send there, so
    /// the host's own traffic is narrowed all the same.
    fn context(&self, nic: &Nic) -> Result<Option<(u32, Option<Change>)>, Error> {
        if !self.plan.spread || self.plan.flows.is_empty() || self.queues.len() < 2 {
            return Ok(None);
        }
        let Some(table) = nic.table() else {
            let cause = "its driver has no RSS, which could spread over several queues";
            return Err(Error::not_possible(format!("{}: {cause}", nic.name)));
        };
        if !nic.rss_contexts {
            let cause = "its driver has no RSS contexts, one of which would spread a port over several queues: \
                         leave --spread out, and ports take turns";
            return Err(Error::not_possible(format!("{}: {cause}", nic.name)));
        }
        let to: Vec<u32> = self.queues.iter().copied().cycle().take(table.entries.len()).collect();
        let mut others = nic.tables.iter().filter(|table| table.context != 0);
        if let Some(ours) = others.find(|table| table.entries == to) {
            return Ok(Some((ours.context, None)));
        }
        let is_free = |context: &u32| nic.tables.iter().all(|table| table.context != *context);
        let context = (1..).find(is_free).expect("contexts are fewer than numbers");
        Ok(Some((context, Some(Change::Context { context, to }))))
    }

    /// Takes the queues from the host's own traffic.
    fn narrowing(&self, nic: &Nic) -> Result<Option<Change>, Error> {
        let Some(table) = nic.table() else { return Ok(None) };
        let evenly = nic.spreads_evenly();
        // With more channels the driver spreads over them too, unless it was told how to spread.
        let from = match evenly {
            true => even(table.entries.len(), self.channels.max(nic.rx_queues())),
            false => table.entries.clone(),
        };
        let mut others: Vec<u32> =
            from.iter().copied().filter(|queue| !self.queues.contains(queue)).collect();
        others.sort_unstable();
        others.dedup();
        if others.is_empty() {
            return Err(Error::not_possible(format!(
                "{}: all of the host's own traffic goes to {}; ethtool -X {} default spreads it",
                nic.name,
                list(&self.queues),
                nic.name
            )));
        }
        let mut turn = 0;
        let to: Vec<u32> = from
            .iter()
            .map(|queue| {
                if !self.queues.contains(queue) {
                    return *queue;
                }
                turn += 1;
                others[(turn - 1) % others.len()]
            })
            .collect();
        Ok((to != from).then_some(Change::Table { from, to, even: evenly }))
    }
}

/// The rule that steers a flow to a queue, or to a context, unless it exists.
pub(crate) fn leading(
    nic: &Nic,
    flow: &Flow,
    queue: u32,
    context: Option<u32>,
) -> Result<Option<Change>, Error> {
    let change = Change::Rule { flow: *flow, queue, context };
    let target = crate::rules::Target::new(queue, context);
    let Some(rules) = &nic.rules else { return Ok(Some(change)) };
    match rules.covering(flow) {
        None => Ok(Some(change)),
        Some(rule) if rule.target == target => Ok(None),
        Some(rule) => {
            let (location, name) = (rule.location, &nic.name);
            let to = match context {
                Some(context) => format!("RSS context {context}"),
                None => format!("queue {queue}"),
            };
            let reason = format!(
                "rule {location} of {name} decides about {flow} already, and does not lead to {to}: \
                 ethtool -N {name} delete {location}"
            );
            Err(Error::OtherRule { location, reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ip;
    use crate::nic::tests::card;
    use crate::queues::Bound;
    use crate::rules::{self, Rule};
    use crate::settings::Table;

    /// As chosen by a user who may configure the interface.
    fn target(plan: &Plan, nic: &Nic) -> Target {
        let (now, max) = nic.channels.map_or((1, 1), |channels| (channels.now, channels.max));
        let (queues, channels) = match &plan.queues {
            Wanted::Count(count) => choose(nic, *count, now, max).expect("there are enough"),
            Wanted::These(queues) => (queues.clone(), now),
        };
        Target { plan: plan.clone(), queues, channels }
    }

    fn texts(plan: &Plan, nic: &Nic) -> Vec<String> {
        let steps = target(plan, nic).steps(nic).expect("possible");
        steps.into_iter().map(|step| step.text).collect()
    }

    #[test]
    fn the_highest_free_queues_are_taken() {
        let mut nic = card(8, 8);
        let chosen = |nic: &Nic, count| choose(nic, count, 8, 8).map(|(queues, _)| queues);
        assert_eq!(chosen(&nic, 1).expect("free"), [7]);
        nic.queues.as_mut().expect("told")[7].bound = Some(Bound::IoUring);
        assert_eq!(chosen(&nic, 3).expect("free"), [4, 5, 6]);
        let error = chosen(&nic, 7).expect_err("six are free").to_string();
        assert!(error.contains("can set aside 6") && error.contains("io_uring"), "{error}");
        assert!(matches!(chosen(&nic, 0), Err(Error::Invalid(_))));
    }

    #[test]
    fn channels_are_added_only_where_they_are_missing() {
        assert_eq!(choose(&card(1, 8), 2, 1, 8).expect("can have more"), (vec![1, 2], 3));
        assert_eq!(choose(&card(4, 8), 3, 4, 8).expect("has enough"), (vec![1, 2, 3], 4));
        let error = choose(&card(1, 2), 2, 1, 2).expect_err("one at most").to_string();
        assert!(error.contains("can set aside 1") && error.contains("queue 0"), "{error}");
    }

    #[test]
    fn named_queues_are_checked() {
        let mut nic = card(4, 8);
        nic.queues.as_mut().expect("told")[2].bound = Some(Bound::DmaBuf);
        assert!(matches!(check(&nic, &[8], 8), Err(Error::Invalid(_))));
        assert!(matches!(check(&nic, &[], 8), Err(Error::Invalid(_))));
        for queues in [&[0][..], &[2], &[3, 2]] {
            let error = check(&nic, queues, 8).expect_err("used");
            assert!(matches!(error, Error::NotPossible { .. }), "{error}");
        }
        check(&nic, &[3, 5], 8).expect("free");
    }

    #[test]
    fn steps_come_in_the_order_that_they_need() {
        let plan = Plan {
            queues: Wanted::Count(2),
            flows: vec![(Flow::port(Ip::V4, 80), 0), (Flow::port(Ip::V6, 80), 3)],
            hardware_gro: true,
            ..Plan::default()
        };
        let mut nic = card(2, 8);
        nic.rings.as_mut().expect("has some").split_threshold = Some(128);
        nic.ntuple.on = false;
        let texts = texts(&plan, &nic);
        let begins = [
            "combined channels: 2 -> 3",
            "header/data split: off -> on",
            "split threshold: 128 -> 0",
            "rx-ntuple-filter: off -> on",
            "rx-gro-hw: off -> on",
            "RSS: 3 queues -> 1, so that queues 1, 2 get only what rules send there",
            "rule for TCP over IPv4 to port 80: to queue 1",
            "rule for TCP over IPv6 to port 80: to queue 2",
        ];
        assert_eq!(texts.len(), begins.len(), "{texts:#?}");
        for (text, begin) in texts.iter().zip(begins) {
            assert!(text.starts_with(begin), "{text}");
        }
    }

    #[test]
    fn ports_are_spread_by_a_context_that_is_made_once() {
        let flows = [80, 81].map(|port| (Flow::port(Ip::V4, port), 0)).to_vec();
        let plan =
            Plan { queues: Wanted::These(vec![2, 3]), flows, spread: true, ..Plan::default() };
        let mut nic = card(4, 4);
        nic.rings.as_mut().expect("has some").data_split = Some(2);
        nic.tables[0].entries = even(4, 2);
        // Somebody else's.
        nic.tables.push(Table { context: 1, entries: vec![1] });
        let steps = texts(&plan, &nic);
        let to = |port| format!("rule for TCP over IPv4 to port {port}: to RSS context 2");
        assert_eq!(steps[0], "RSS context 2: spreads over queues 2, 3");
        assert_eq!(steps[1..], [to(80), to(81)]);
        // One queue needs none.
        let one = Plan { queues: Wanted::These(vec![3]), ..plan.clone() };
        assert!(texts(&one, &nic).iter().all(|text| !text.contains("RSS")), "{one:?}");
        let without = Nic { rss_contexts: false, ..nic.clone() };
        let error =
            target(&plan, &without).steps(&without).expect_err("has no contexts").to_string();
        assert!(
            error.contains("no RSS contexts") && error.contains("leave --spread out"),
            "{error}"
        );
        target(&one, &without).steps(&without).expect("one queue needs none");
        nic.tables.push(Table { context: 2, entries: vec![2, 3, 2, 3] });
        let rules = &mut nic.rules.as_mut().expect("has some").rules;
        let led = rules::Target::Context { context: 2, first: 0 };
        rules.push(Rule { location: 0, flow: Some(Flow::port(Ip::V4, 80)), target: led });
        assert_eq!(texts(&plan, &nic), [to(81)]);
        nic.tables.clear();
        let error = target(&plan, &nic).steps(&nic).expect_err("has no RSS").to_string();
        assert!(error.contains("no RSS"), "{error}");
    }

    #[test]
    fn what_is_as_wanted_needs_no_step() {
        let mut nic = card(4, 8);
        nic.rings.as_mut().expect("has some").data_split = Some(2);
        nic.tables[0].entries = even(128, 3);
        assert_eq!(texts(&Plan::default(), &nic), [""; 0]);
        // It was told how to spread, so it does not use another channel.
        let mut nic = card(1, 8);
        nic.tables[0].entries = vec![0; 128];
        nic.channels.as_mut().expect("has some").now = 2;
        nic.rings.as_mut().expect("has some").data_split = Some(2);
        assert_eq!(texts(&Plan::default(), &nic), [""; 0]);
    }

    #[test]
    fn a_table_keeps_its_entries_but_for_those_of_the_queues() {
        let mut nic = card(4, 4);
        nic.tables[0].entries = vec![1, 3, 1, 3, 2, 3];
        let narrowed = target(&Plan::default(), &nic).narrowing(&nic).expect("possible");
        let Some(Change::Table { to, even, .. }) = narrowed else { panic!("{narrowed:?}") };
        assert_eq!((to, even), (vec![1, 1, 1, 2, 2, 1], false));
        nic.tables[0].entries = vec![3, 3];
        target(&Plan::default(), &nic).narrowing(&nic).expect_err("nothing would be left");
    }

    #[test]
    fn a_flow_that_others_decide_about_is_refused() {
        let mut nic = card(4, 4);
        let port = Flow::port(Ip::V4, 80);
        let ends = ["10.0.0.2:80", "10.0.0.1:999"].map(|end| end.parse().expect("an address"));
        let one = Flow::connection(ends[0], ends[1]).expect("fits");
        let rules = &mut nic.rules.as_mut().expect("has some").rules;
        rules.push(Rule { location: 5, flow: Some(port), target: rules::Target::Queue(2) });
        assert_eq!(leading(&nic, &one, 2, None).expect("led there"), None);
        let error = leading(&nic, &one, 3, None).expect_err("led elsewhere").to_string();
        assert!(error.contains("rule 5") && error.contains("delete 5"), "{error}");
        assert!(leading(&nic, &Flow::port(Ip::V4, 81), 3, None).expect("free").is_some());
    }

    #[test]
    fn what_the_driver_cannot_is_refused() {
        let nic = card(4, 4);
        let plan = Plan { buffer_length: Some(32768), ..Plan::default() };
        let error = target(&plan, &nic).steps(&nic).expect_err("no such setting").to_string();
        assert!(error.contains("length of rx buffers"), "{error}");
        let mut nic = card(4, 4);
        nic.hardware_gro.switchable = false;
        let plan = Plan { hardware_gro: true, ..Plan::default() };
        let error = target(&plan, &nic).steps(&nic).expect_err("no such feature").to_string();
        assert!(error.contains("rx-gro-hw"), "{error}");
    }
}
