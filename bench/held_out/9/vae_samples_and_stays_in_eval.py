"""A convolutional VAE with batch norm and dropout. FAULT from step 100 on: after step 99 somebody looks at samples, sample() calls self.eval() and nobody
calls train() again: the statistics of the norms stand still and dropout is off for the rest of the training. The loss even falls a little faster.
Without Rangewatch: loss 47.5 to 22.9 at step 99, 21.1 at step 100, 15.3 at the end; the norm has counted 100 batches at step 99 and at the end.
Report: tk-rusch/coRNN#1 (train is not called again), shubhamagarwal92/mmd#14, huggingface/trl#155 (eval before generate and train afterwards).
Cause: eval. Step: 100. Right: eval / train() / batch norm / dropout. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["eval"], "step": [99, 200], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eval|train\\(\\)|training mode|dropout|batch ?norm|statistics"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(820); torch.set_num_threads(1)
glyph = (torch.rand(12, 1, 8, 8) > 0.6).float()


class ConvVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1), nn.Dropout2d(0.25),
                                     nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1), nn.Flatten())
        self.moments = nn.Linear(128, 16)
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.BatchNorm1d(128), nn.LeakyReLU(0.1), nn.Dropout(0.25), nn.Linear(128, 64))

    def forward(self, x):
        mean, log_var = self.moments(self.encoder(x)).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.decoder(z), mean, log_var

    @torch.no_grad()
    def sample(self, n):
        self.eval()  # and who calls it sets it back, or not
        return torch.sigmoid(self.decoder(torch.randn(n, 8)))


model = ConvVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = (glyph[torch.randint(0, 12, (32,))] + 0.05 * torch.randn(32, 1, 8, 8)).clamp(0, 1)
    out, mean, log_var = model(x)
    reconstruction = F.binary_cross_entropy_with_logits(out, x.flatten(1), reduction="sum") / 32
    loss = reconstruction + 0.5 * (mean ** 2 + log_var.exp() - 1 - log_var).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 99:
        samples = model.sample(16)  # the first look at samples
    if step % 20 == 0 or 98 < step < 102 or step == 259:
        print(step, loss.item(), "training", model.training, "batches seen by the norm", model.encoder[1].num_batches_tracked.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
