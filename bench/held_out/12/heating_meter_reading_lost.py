"""Q-learning of a heating from stored hours: a GRU over twelve readings, a target net, Huber loss of the TD error. FAULT at step 90: the reward is made of
the meter's reading, which was lost in one of the 32 hours of that batch; the reward is NaN. The observations are all finite.
Without Rangewatch: loss 0.119 to 0.014 at step 89, NaN from step 90 on.
Variant of: nan_in_a_reward.
Cause: data (forward_arithmetic of the loss would do). Step: 90. Right: data / batch / target / reward / input. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [89, 91], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "data|batch|target|label|reward|input|loss"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1204); torch.set_num_threads(1)


class HeatingQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(3, 24, batch_first=True)
        self.value = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x):
        return self.value(self.memory(x)[1][0])


def stored_hours(step):
    now = torch.randn(32, 12, 3)
    action = torch.randint(0, 4, (32,))
    cold = now[:, -4:, 0].mean(1)
    reward = 1 - (action.float() / 1.5 - 1 - cold).abs()
    later = torch.cat([now[:, 1:], torch.randn(32, 1, 3)], 1)
    if step == 90:
        reward[17] = float("nan")
    return now, action, reward, later


model = HeatingQ()
target = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    now, action, reward, later = stored_hours(step)
    with torch.no_grad():
        aim = reward + 0.5 * target(later).amax(1)
    loss = F.smooth_l1_loss(model(now).gather(1, action[:, None]).squeeze(1), aim)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        target.load_state_dict(model.state_dict())
    if step % 20 == 0 or step in (89, 90, 91, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
