//! The page in a browser without a network: headless Chromium.
//!
//! Each case opens a page in a process of its own, which ends when it has done what it was asked for.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use handoff_testbed::skip;

use crate::sample;

/// Of Debian; the first is the smaller one.
const BROWSERS: [&str; 2] = ["chromium-headless-shell", "chromium"];
const TIMEOUT_SECONDS: &str = "60";

const PHONE: u32 = 390;
const DESK: u32 = 1_280;
const LIGHT: &str = "1";
const DARK: &str = "0";

/// Asks the page itself, which its policy does not allow.
const ASK: &str = r"<script>
const root = document.documentElement;
const wide = [...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, details')
    && one.getBoundingClientRect().right > root.clientWidth + 0.5).map((one) => one.outerHTML.slice(0, 80));
document.title = 'ASKED ' + JSON.stringify({
    width: root.clientWidth, scrolls: root.scrollWidth, wide,
    paper: getComputedStyle(document.body).backgroundColor,
    grown: Math.round(document.querySelector('figure svg').getBoundingClientRect().width),
});
</script>";

fn browser() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let places = || env::split_paths(&path);
    BROWSERS.iter().find_map(|name| places().map(|it| it.join(name)).find(|file| file.is_file()))
}

macro_rules! browser_or_skip {
    () => {
        match browser() {
            Some(browser) => browser,
            None => skip!("no browser: apt-get install {}", BROWSERS[0]),
        }
    };
}

/// A page on disk, and a directory for what the browser makes.
struct Opened {
    directory: tempfile::TempDir,
    page: PathBuf,
}

/// What the browser wrote, and what its console written.
struct BrowserOutput {
    output: String,
    console: Vec<String>,
}

impl Opened {
    fn new(page: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("page.html");
        fs::write(&file, page).expect("it is written");
        Self { directory, page: file }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Opens the page, in a window of this width, by day or by night.
    fn open(&self, browser: &Path, width: u32, scheme: &str, task: &str) -> BrowserOutput {
        let output = Command::new("timeout")
            .args(["--kill-after=5", TIMEOUT_SECONDS])
            .arg(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--enable-logging=stderr",
                "--v=0",
            ])
            // Nothing answers there, and no name is found.
            .args(["--proxy-server=127.0.0.1:1", "--host-resolver-rules=MAP * ~NOTFOUND"])
            .arg(format!("--user-data-dir={}", self.file("profile").display()))
            .arg(format!("--window-size={width},900"))
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(task)
            .arg(format!("file://{}", self.page.display()))
            .stdin(Stdio::null())
            .output()
            .expect("timeout(1) starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", output.status);
        let console = errors.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned);
        BrowserOutput {
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            console: console.collect(),
        }
    }

    /// The page's own facts.
    fn ask(&self, browser: &Path, width: u32, scheme: &str) -> serde_json::Value {
        let written = self.open(browser, width, scheme, "--dump-dom");
        let (_, answer) = written.output.split_once("<title>ASKED ").expect("it was asked");
        let (answer, _) = answer.split_once("</title>").expect("its end");
        serde_json::from_str(
            &answer.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"),
        )
        .expect("JSON")
    }
}

/// The sample without its policy, and with the question.
fn asking() -> Opened {
    let page = sample::drawn();
    let allowed = page.replacen("default-src 'none'", "default-src 'unsafe-inline'", 1);
    Opened::new(&allowed.replace("</body>", &format!("{ASK}</body>")))
}

#[test]
fn it_opens_without_network_and_without_a_word_on_the_console() {
    let browser = browser_or_skip!();
    let page = sample::drawn();
    let written = Opened::new(&page).open(&browser, DESK, LIGHT, "--dump-dom");
    assert_eq!(written.console, [""; 0]);
    assert!(written.output.contains("draws it again."), "its end: {}", written.output);

    // The console would have been read, and nothing is loaded even if it stands in the page.
    let loading = page.replace("</main>", "<img src='https://192.0.2.1/a.png' alt='a'></main>");
    let written = Opened::new(&loading).open(&browser, DESK, LIGHT, "--dump-dom");
    assert_eq!(written.console.len(), 1, "{:?}", written.console);
    assert!(written.console[0].contains("Content Security Policy"), "{:?}", written.console);
}

#[test]
fn it_fits_a_desk_and_a_phone() {
    let browser = browser_or_skip!();
    let opened = asking();
    for (width, plots) in [(PHONE, 300..=PHONE.into()), (DESK, 500..=700)] {
        let answer = opened.ask(&browser, width, LIGHT);
        assert_eq!(answer["width"], width, "{answer}");
        assert_eq!(answer["scrolls"], width, "it scrolls sideways: {answer}");
        assert_eq!(answer["wide"], serde_json::json!([]), "beyond the edge: {answer}");
        assert!(plots.contains(&answer["grown"].as_u64().expect("a number")), "{answer}");
    }
}

#[test]
fn it_is_dark_by_night_and_goes_on_paper() {
    let browser = browser_or_skip!();
    let opened = asking();
    assert_eq!(opened.ask(&browser, DESK, LIGHT)["paper"], "rgb(255, 255, 255)");
    assert_eq!(opened.ask(&browser, DESK, DARK)["paper"], "rgb(18, 22, 28)");

    let opened = Opened::new(&sample::drawn());
    let paper = opened.file("page.pdf");
    opened.open(&browser, DESK, DARK, &format!("--print-to-pdf={}", paper.display()));
    let paper = fs::read(paper).expect("it was printed");
    assert!(paper.starts_with(b"%PDF-") && paper.len() > 20_000, "{} bytes", paper.len());
}
