//! The accounts and groups of one instance, by name, and which of them may not be the same.

use salaam_core::instance::is_account_name;

use super::SetupError;

/// The names of one instance.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub service_user: String,
    pub tools_user: String,
    pub group: String,
    pub operators_group: Option<String>,
    pub operators: Vec<String>,
}

impl Names {
    /// Whether they may stand beside each other.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let operators = self.operators_group.iter().map(|name| ("--operators-group", name));
        let people = self.operators.iter().map(|name| ("--operator", name));
        let fixed =
            [("--service-user", &self.service_user), ("--tools-user", &self.tools_user), ("--group", &self.group)];
        for (option, name) in fixed.into_iter().chain(operators).chain(people) {
            if !is_account_name(name) {
                return Err(SetupError::Name { option, name: name.chars().take(64).collect() });
            }
        }
        let refuse = |who: &str, why: &str| {
            let fix = "give each its own name".to_owned();
            Err(SetupError::Account { who: who.to_owned(), why: why.to_owned(), fix })
        };
        if self.service_user == self.tools_user {
            return refuse(&self.tools_user, "service user and tools user are one");
        }
        if self.operators_group.as_ref() == Some(&self.group) {
            return refuse(&self.group, "a tools user in the operators group would grant its own commands");
        }
        if self.operators.contains(&self.tools_user) {
            return refuse(&self.tools_user, "a tools user that is an operator would grant its own commands");
        }
        if self.operators_group.is_none() && !self.operators.is_empty() {
            return refuse("--operator", "there is no --operators-group to add them to");
        }
        Ok(())
    }
}
