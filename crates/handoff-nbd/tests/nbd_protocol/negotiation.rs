//! Both negotiations against each other: what is offered is agreed on, and what is not is done without.

use handoff_nbd::client::{Goal, NegotiationError, Step, Wish};
use handoff_nbd::server::{Policy, Tls};
use handoff_nbd::wire::{
    ALLOCATION, ClientFlags, Framing, HandshakeFlags, InfoRequest, InfoType, MetaRequest,
    OptionCode, OptionReply, Session, encode_greeting,
};

use super::table::{
    INSTANCE, SIZE, ServerEnd, ask, export, negotiate, option, replies, reply, serve, target,
};

const SESSION: Session = Session { token: 7, turn: 1 };
const FIXED: [u8; 4] = 3_u32.to_be_bytes();

fn ready(policy: Policy, wish: Wish) -> handoff_nbd::client::Agreed {
    let (step, server) = negotiate(policy, wish);
    let Ok(Step::Ready(agreed)) = step else { panic!("{step:?}") };
    assert_eq!(agreed.target, server.expect("both are ready").target);
    *agreed
}

#[test]
fn both_sides_agree_on_the_same_by_any_policy() {
    for bits in 0..64 {
        let has = |bit: u32| bits >> bit & 1 != 0;
        let (structured, extended, sessions) = (has(0), has(1), has(2));
        let policy = Policy { structured, extended, sessions, ..Policy::default() };
        let mut wish = Wish::export("");
        wish.session = has(3).then_some(SESSION);
        (wish.structured, wish.extended) = (has(4), has(5));
        let agreed = ready(policy, wish);
        let framing = match (extended && has(5), structured && has(4)) {
            (true, _) => Framing::Extended,
            (false, true) => Framing::Structured,
            (false, false) => Framing::Simple,
        };
        assert_eq!(agreed.target, target(framing));
        assert_eq!(agreed.allocation.is_some(), framing != Framing::Simple);
        assert_eq!(agreed.instance, (sessions && has(3)).then_some(INSTANCE));
        assert_eq!(agreed.name.as_deref(), Some("disk"), "the default export has a name");
        assert_eq!(agreed.description.as_str(), "a disk\\nof two lines");
        assert!(agreed.told_block_sizes);
    }
}

#[test]
fn exports_are_listed_and_described() {
    let (step, _) = negotiate(Policy::default(), Wish { goal: Goal::List, ..Wish::export("") });
    let Ok(Step::Listed(listed)) = step else { panic!("{step:?}") };
    let names: Vec<_> = listed.iter().map(|listed| listed.name.as_str()).collect();
    assert_eq!(names, ["disk", "strict"]);
    let (step, server) =
        negotiate(Policy::default(), Wish { goal: Goal::Describe, ..Wish::export("strict") });
    let Ok(Step::Described(agreed)) = step else { panic!("{step:?}") };
    assert_eq!(agreed.target.size, SIZE);
    assert!(server.is_none(), "the server goes on with options");
}

#[test]
fn refusals_name_their_reason() {
    let refused = |policy, wish| {
        let (step, _) = negotiate(policy, wish);
        step.expect_err("is refused").to_string()
    };
    assert_eq!(
        refused(Policy::default(), Wish::export("no")),
        "the server refused the export: there is no such export (there is no export of this name)"
    );
    let secret = refused(Policy::default(), Wish::export("secret"));
    assert!(secret.ends_with("its policy forbids that (not for you\\u{1b}[31m)"), "{secret}");
    let tls = refused(Policy::default(), Wish { tls: true, ..Wish::export("") });
    assert!(tls.contains("refused TLS"), "{tls}");
    let tls = refused(Policy { tls: Tls::Required, ..Policy::default() }, Wish::export(""));
    assert!(tls.contains("it wants TLS first"), "{tls}");
    let lists = Policy { lists: false, ..Policy::default() };
    let listed = refused(lists, Wish { goal: Goal::List, ..Wish::export("") });
    assert!(listed.contains("refused to list its exports"), "{listed}");
    let turn = Some(Session { token: 7, turn: 0 });
    let session = refused(Policy::default(), Wish { session: turn, ..Wish::export("") });
    assert!(
        session.contains("this session: its policy forbids that (this turn is over)"),
        "{session}"
    );
}

#[test]
fn nothing_agreed_before_tls_counts() {
    let policy = Policy { tls: Tls::Offered, ..Policy::default() };
    let agreed = ready(policy, Wish { tls: true, ..Wish::export("") });
    assert_eq!(agreed.target.framing, Framing::Extended);
    let structured = option(OptionCode::StructuredReply, &[]);
    let tls = option(OptionCode::StartTls, &[]);
    let go = InfoRequest { name: "disk".into(), infos: vec![] };
    let go = option(OptionCode::Go, &go.encode());
    let bytes = [&FIXED[..], &structured, &tls, &tls, &go].concat();
    let (sent, end, _) = serve(policy, &bytes, 1);
    let ServerEnd::Ready(agreed) = end else { panic!("{end:?}") };
    assert!(agreed.tls);
    assert_eq!(agreed.target.framing, Framing::Simple);
    assert_eq!(replies(&sent)[2].1, OptionReply::ErrInvalid, "TLS runs already");
}

#[test]
fn old_clients_choose_an_export_by_its_name() {
    for (flags, len) in
        [(FIXED, 10), (ClientFlags::FIXED_NEWSTYLE.bits().to_be_bytes(), 134), ([0; 4], 134)]
    {
        let bytes = [&flags[..], &option(OptionCode::ExportName, b"disk")].concat();
        let (sent, end, _) = serve(Policy::default(), &bytes, 3);
        assert_eq!(sent.len(), len);
        assert_eq!(sent[..8], SIZE.to_be_bytes());
        assert!(sent[10..].iter().all(|byte| *byte == 0));
        assert!(matches!(end, ServerEnd::Ready(_)), "{end:?}");
    }
}

/// A server of before `GO`: it refuses all options, then gives the export in the old way.
#[test]
fn old_servers_are_asked_in_the_old_way() {
    let refuse = |option| reply(option, OptionReply::ErrUnsup, b"");
    let export = [&SIZE.to_be_bytes()[..], &3_u16.to_be_bytes(), &[0; 124]].concat();
    let options = [
        OptionCode::Session,
        OptionCode::ExtendedHeaders,
        OptionCode::StructuredReply,
        OptionCode::Go,
    ];
    let greeting = encode_greeting(HandshakeFlags::FIXED_NEWSTYLE);
    let refusals = options.map(refuse).concat();
    let bytes = [&greeting[..], &refusals, &export].concat();
    let wish = Wish { session: Some(SESSION), ..Wish::export("x") };
    let (sent, step, taken) = ask(wish, &bytes, 1);
    assert_eq!(taken, bytes.len());
    assert!(sent.ends_with(&option(OptionCode::ExportName, b"x")));
    let Ok(Step::Ready(agreed)) = step else { panic!("{step:?}") };
    assert_eq!((agreed.target.size, agreed.target.flags.bits()), (SIZE, 3));
    assert!(!agreed.told_block_sizes);
    // And one of before options.
    let bytes = [&encode_greeting(HandshakeFlags::NO_ZEROES)[..], &export[..10]].concat();
    let (_, step, _) = ask(Wish::export("x"), &bytes, 7);
    assert!(matches!(step, Ok(Step::Ready(_))), "{step:?}");
    let (_, step, _) = ask(Wish { goal: Goal::List, ..Wish::export("x") }, &bytes, 7);
    assert!(matches!(step, Err(NegotiationError::NotFixed(_))), "{step:?}");
}

#[test]
fn a_strict_export_wants_to_be_asked_for_its_blocks() {
    let go = |infos| {
        let asked = InfoRequest { name: "strict".into(), infos };
        serve(
            Policy::default(),
            &[&FIXED[..], &option(OptionCode::Go, &asked.encode())].concat(),
            9,
        )
    };
    let (sent, end, _) = go(vec![InfoType::Other(77)]);
    assert!(matches!(end, ServerEnd::Hungry), "{end:?}");
    let told: Vec<_> = replies(&sent).into_iter().map(|(_, reply, data)| (reply, data)).collect();
    let size = [&3_u16.to_be_bytes()[..], &export().block.encode()].concat();
    assert_eq!(told[1], (OptionReply::Info, size), "told, so that the client need not ask twice");
    assert_eq!(told[2].0, OptionReply::ErrBlockSizeReqd);
    assert!(matches!(go(vec![InfoType::BlockSize]).1, ServerEnd::Ready(_)));
}

#[test]
fn contexts_hold_for_their_export_only() {
    let meta = |code, name: &str, queries: &[&str]| {
        let queries = queries.iter().map(|query| (*query).to_owned()).collect();
        option(code, &MetaRequest { name: name.into(), queries }.encode())
    };
    let go = option(OptionCode::Go, &InfoRequest { name: "disk".into(), infos: vec![] }.encode());
    let run = |options: &[Vec<u8>]| {
        let structured = option(OptionCode::StructuredReply, &[]);
        let bytes = [&FIXED[..], &structured, &options.concat(), &go].concat();
        let (sent, end, _) = serve(Policy::default(), &bytes, 1000);
        let ServerEnd::Ready(agreed) = end else { panic!("{end:?}") };
        let contexts = replies(&sent).iter().filter(|it| it.1 == OptionReply::MetaContext).count();
        (contexts, agreed.target.has_contexts)
    };
    let (list, set) = (OptionCode::ListMetaContext, OptionCode::SetMetaContext);
    assert_eq!(run(&[meta(set, "", &[ALLOCATION])]), (1, true), "the default is the same export");
    assert_eq!(run(&[meta(set, "strict", &[ALLOCATION])]), (1, false), "of another export");
    assert_eq!(run(&[meta(set, "disk", &["base:", "x-other:it"])]), (0, false), "no wildcards");
    assert_eq!(run(&[meta(set, "disk", &[ALLOCATION]), meta(set, "disk", &[])]), (1, false));
    assert_eq!(
        run(&[meta(set, "disk", &[ALLOCATION]), meta(set, "no", &[ALLOCATION])]),
        (1, false)
    );
    assert_eq!(run(&[meta(list, "disk", &[])]), (1, false));
    assert_eq!(run(&[meta(list, "disk", &["base:"])]), (1, false));
    assert_eq!(run(&[meta(list, "disk", &["qemu:"])]), (0, false));
}

#[test]
fn what_follows_the_agreement_is_left_alone() {
    let go = option(OptionCode::Go, &InfoRequest { name: "disk".into(), infos: vec![] }.encode());
    let bytes = [&FIXED[..], &go, b"a request"].concat();
    let (sent, _, taken) = serve(Policy::default(), &bytes, 4096);
    assert_eq!(taken, bytes.len() - 9);
    let server = [&encode_greeting(HandshakeFlags::all())[..], &sent, b"a reply"].concat();
    let wish = Wish { extended: false, structured: false, ..Wish::export("disk") };
    let (_, step, taken) = ask(wish, &server, 4096);
    assert!(matches!(step, Ok(Step::Ready(_))));
    assert_eq!(taken, server.len() - 7);
}
