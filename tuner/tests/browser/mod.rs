//! A headless Chromium over the DevTools protocol: JSON messages that end in a zero byte, on two pipes
//! (`--remote-debugging-pipe`; <https://chromedevtools.github.io/devtools-protocol/>).

use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The names that Chromium goes by.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// A browser with one page.
pub struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens `url` in a window of this size and waits until it is loaded.
    pub fn open(url: &str, width: u32, height: u32) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // Chromium reads from descriptor 3 and writes to 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", &binary()])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"])
            .args(["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut browser = Self { process, to, from, session: None, last: 0, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let session = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = session["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.prefer("light");
        browser.resize(width, height);
        browser.call("Page.navigate", json!({ "url": url }));
        browser.wait_until("document.readyState === 'complete' && location.protocol === 'file:'");
        browser
    }

    /// Waits until a JavaScript expression is true.
    pub fn wait_until(&mut self, condition: &str) {
        let start = Instant::now();
        while self.evaluate(condition) != true {
            assert!(start.elapsed() < Duration::from_secs(20), "never: {condition}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The value of a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Presses the mouse on the middle of an element, as a user does.
    pub fn click(&mut self, selector: &str) {
        let middle = format!(
            "(e => {{ e.scrollIntoView({{ block: 'center' }}); const b = e.getBoundingClientRect(); \
             return [b.x + b.width / 2, b.y + b.height / 2] }})(document.querySelector('{selector}'))"
        );
        let at = self.evaluate(&middle);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses Enter on what has the focus.
    pub fn enter(&mut self) {
        let key = json!({ "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r" });
        for kind in ["keyDown", "keyUp"] {
            let mut event = key.clone();
            event["type"] = kind.into();
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Lets the system prefer dark colours.
    pub fn prefer_dark(&mut self) {
        self.prefer("dark");
    }

    fn prefer(&mut self, scheme: &str) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
    }

    /// Gives the page another size, CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Different colours in a screenshot.
    pub fn colours(&mut self) -> usize {
        let image = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let bytes = base64(image["data"].as_str().unwrap());
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        let size = frame.color_type.samples();
        pixels[..frame.buffer_size()].chunks(size).collect::<HashSet<_>>().len()
    }

    /// What was asked for over the network or from the disk, in order.
    pub fn requests(&mut self) -> Vec<String> {
        self.evaluate("0"); // what was sent before has arrived
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_string()).collect()
    }

    /// What the console says: messages, errors, exceptions, and violations of the page's policy.
    pub fn complaints(&mut self) -> Vec<String> {
        self.evaluate("0");
        let kinds = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        let said = self.events.iter().filter(|event| kinds.iter().any(|kind| event["method"] == *kind));
        said.map(|event| event["params"].to_string()).collect()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        write!(self.to, "{message}\0").unwrap();
        self.to.flush().unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert!(bytes.pop().is_some(), "the browser ended at {method}");
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The browser of this machine: `$NVKV_CHROMIUM`, or the first of the known names.
fn binary() -> String {
    let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    std::env::var("NVKV_CHROMIUM").unwrap_or_else(|_| {
        let found = NAMES.iter().find(|name| runs(name));
        found.expect("no Chromium is here: apt-get install chromium, or set NVKV_CHROMIUM to one").to_string()
    })
}

/// The bytes of a base64 text (RFC 4648).
fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(digit).collect();
    let group = |group: &[u8]| {
        let bits = (0..4).fold(0, |bits, n| bits << 6 | u32::from(group.get(n).copied().unwrap_or(0)));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
