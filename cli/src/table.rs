//! What was measured, as tables, JSON or CSV.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::metrics::{METRICS, Metric};
use crate::simulate::{Load, Row};

/// What changes are told against.
const BASELINE: &str = "round_robin";

/// One table a load: metrics down, policies across.
pub fn text(rows: &[Row]) -> String {
    let tables = rows.chunk_by(|one, other| one.load == other.load);
    tables.map(|rows| format!("\n{}\n", table(rows))).collect()
}

fn table(rows: &[Row]) -> Table {
    let baseline = baseline(rows);
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(
        [rows[0].load.to_string()].into_iter().chain(rows.iter().map(|row| row.policy.to_string())),
    );
    for metric in METRICS {
        let cells = rows.iter().map(|row| cell(row, baseline, metric));
        table.add_row([metric.title.to_string()].into_iter().chain(cells));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// `12.20 ± 0.05 (-5.3 %)`
fn cell(row: &Row, baseline: Option<&Row>, metric: &Metric) -> String {
    match change(row, baseline, metric) {
        Some(change) => format!("{} ({change})", mean(row, metric)),
        None => mean(row, metric),
    }
}

/// `12.20 ± 0.05`
pub fn mean(row: &Row, metric: &Metric) -> String {
    let mean = row.mean(metric);
    if mean.is_nan() {
        return "–".into();
    }
    let decimals = metric.decimals;
    match row.standard_deviation(metric) {
        Some(deviation) => format!("{mean:.decimals$} ± {deviation:.decimals$}"),
        None => format!("{mean:.decimals$}"),
    }
}

/// `-5.3 %`
pub fn change(row: &Row, baseline: Option<&Row>, metric: &Metric) -> Option<String> {
    let base = baseline.map(|row| row.mean(metric)).filter(|&base| base > 0.0)?;
    let change = 100.0 * (row.mean(metric) / base - 1.0);
    (row.policy != BASELINE && !change.is_nan()).then(|| format!("{change:+.1} %"))
}

/// Of the rows of one load.
pub fn baseline(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| row.policy == BASELINE)
}

/// A row a load and policy: means by name, standard deviations under `sd`.
pub fn json(rows: &[Row]) -> Result<String> {
    let rows: Vec<_> = rows.iter().map(json_row).collect();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

fn json_row(row: &Row) -> Map<String, Value> {
    let (load, value) = load(row);
    let mut fields = Map::new();
    fields.insert("policy".into(), row.policy.into());
    fields.insert(load.into(), value);
    fields.extend(METRICS.iter().map(|metric| (metric.name.into(), json!(row.mean(metric)))));
    let deviations: Map<_, _> = METRICS
        .iter()
        .filter_map(|metric| Some((metric.name.into(), json!(row.standard_deviation(metric)?))))
        .collect();
    if !deviations.is_empty() {
        fields.insert("sd".into(), deviations.into());
    }
    fields
}

fn load(row: &Row) -> (&'static str, Value) {
    match row.load {
        Load::Concurrency(concurrency) => ("concurrency", concurrency.into()),
        Load::RateScale(rate) => ("rate_scale", rate.into()),
    }
}

/// The same, a column each; deviations as `…_sd`.
pub fn csv(rows: &[Row]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if let Some(row) = rows.first() {
        let names = METRICS.iter().map(|metric| metric.name.to_string());
        let deviations = METRICS.iter().map(|metric| format!("{}_sd", metric.name));
        let first = ["policy".to_string(), load(row).0.to_string()];
        writer.write_record(first.into_iter().chain(names).chain(deviations))?;
    }
    let number = |number: f64| if number.is_nan() { String::new() } else { number.to_string() };
    for row in rows {
        let means = METRICS.iter().map(|metric| number(row.mean(metric)));
        let deviations = METRICS
            .iter()
            .map(|metric| row.standard_deviation(metric).map_or(String::new(), number));
        let first = [row.policy.to_string(), load(row).1.to_string()];
        writer.write_record(first.into_iter().chain(means).chain(deviations))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Measured;

    fn row(policy: &'static str, tpot_p50_ms: &[f64]) -> Row {
        let nan = f64::NAN;
        let measured = |&tpot_p50_ms: &f64| Measured {
            tok_s_gpu: 370.04,
            tpot_p50_ms,
            tpot_p90_ms: nan,
            ttft_p50_ms: nan,
            ttft_p90_ms: nan,
            outstanding_cv: 0.125,
            batch_cv: nan,
            busiest_batch: nan,
            kv_busiest_over_mean: nan,
            busiest_share: nan,
            rank_mean_dev: nan,
            waiting_share: nan,
        };
        let runs = tpot_p50_ms.iter().map(measured).collect();
        Row { policy, load: Load::Concurrency(192), request_tokens: 0, runs, series: None }
    }

    fn tpot() -> &'static Metric {
        METRICS.iter().find(|metric| metric.name == "tpot_p50_ms").unwrap()
    }

    #[test]
    fn a_cell_has_mean_deviation_and_change() {
        let baseline = row("round_robin", &[12.0, 14.0]);
        let other = row("requests", &[11.0, 12.4]);
        assert_eq!(cell(&other, Some(&baseline), tpot()), "11.70 ± 0.99 (-10.0 %)");
        assert_eq!(cell(&baseline, Some(&baseline), tpot()), "13.00 ± 1.41");
        assert_eq!(cell(&other, None, tpot()), "11.70 ± 0.99");
        assert_eq!(cell(&row("requests", &[14.3]), Some(&baseline), tpot()), "14.30 (+10.0 %)");
        assert_eq!(cell(&row("requests", &[f64::NAN]), Some(&baseline), tpot()), "–");
    }

    #[test]
    fn each_load_has_a_table() {
        let rows = [192, 384].map(|concurrency| Row {
            load: Load::Concurrency(concurrency),
            ..row("round_robin", &[12.0])
        });
        let text = text(&rows);
        for part in ["concurrency 192", "concurrency 384"] {
            assert_eq!(text.matches(part).count(), 1, "{text}");
        }
    }

    #[test]
    fn json_has_the_means_by_name() {
        let text = json(&[row("requests", &[11.0, 12.0]), row("tokens", &[11.0])]).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(rows[0]["policy"], "requests");
        assert_eq!(rows[0]["concurrency"], 192);
        assert_eq!(rows[0]["tpot_p50_ms"], 11.5);
        assert_eq!(rows[0]["sd"]["tpot_p50_ms"], 0.5f64.sqrt());
        assert_eq!(rows[0]["tpot_p90_ms"], Value::Null);
        assert_eq!(rows[1].get("sd"), None, "a single seed deviates from nothing");
    }

    #[test]
    fn csv_has_a_line_a_row() {
        let text = super::csv(&[row("requests", &[11.0, 12.0]), row("tokens", &[11.0])]).unwrap();
        let mut reader = ::csv::Reader::from_reader(text.as_bytes());
        let headers = reader.headers().unwrap().clone();
        let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
        let rows: Vec<_> = reader.records().map(|record| record.unwrap()).collect();
        assert_eq!(&rows[0][column("policy")], "requests");
        assert_eq!(&rows[0][column("concurrency")], "192");
        assert_eq!(&rows[0][column("tpot_p50_ms")], "11.5");
        assert!(rows[0][column("tpot_p50_ms_sd")].starts_with("0.707"));
        assert_eq!(&rows[0][column("tpot_p90_ms")], "");
        assert_eq!(&rows[1][column("tpot_p50_ms_sd")], "");
    }
}
